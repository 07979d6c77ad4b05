"""The commands of `fewtune`, one function for each, and what they print."""

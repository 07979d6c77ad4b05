"""The commands of `fewtune`, a function each, and what they print."""

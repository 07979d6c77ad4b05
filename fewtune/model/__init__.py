"""Models: registered, checked, and imported into Relax."""

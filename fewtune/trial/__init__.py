"""A measured candidate: its trace, outcome, phases, and a worker's replies."""

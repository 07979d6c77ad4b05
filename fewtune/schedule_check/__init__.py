"""The check of a schedule: a candidate's outputs against what its task computes."""

"""Schedule check: a candidate's outputs are compared with those that its task defines."""

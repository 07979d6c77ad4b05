"""One-shot: every task gets the schedule that the predictor rates best; nothing is measured."""

"""Simulated rounding: a model with random factors close to one between its operators."""

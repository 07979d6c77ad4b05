"""Timing: one kernel is called with caches in the state that a model leaves."""

"""Timing: one kernel called as a model calls it, its caches brought into that state."""

"""Tuning: what is measured next, and how it outlives a kill."""

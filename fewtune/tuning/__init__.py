"""Tuning: what is measured next, by whom, and how it outlives a kill."""

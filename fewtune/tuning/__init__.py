"""Tuning: sessions, which task is measured next, and resumption after a kill."""

"""Compilation: the tuning log applied, built, exported."""

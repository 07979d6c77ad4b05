"""Schedules: defaults by rule, search spaces, and traces moved from one task to another."""

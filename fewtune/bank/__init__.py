"""Schedules that were tuned for other models, kept as donors for the next one."""

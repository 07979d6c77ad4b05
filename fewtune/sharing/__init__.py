"""Sharing: schedules of tuned tasks, and of the bank, given to all others."""

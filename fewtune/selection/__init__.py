"""Task selection: which tasks are tuned, and which take their schedules from those."""

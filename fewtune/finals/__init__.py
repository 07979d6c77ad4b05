"""Finals: the fastest schedules of each task, measured where the model calls them."""

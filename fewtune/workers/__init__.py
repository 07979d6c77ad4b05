"""Worker processes: they compile candidates and run them."""

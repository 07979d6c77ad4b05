"""What DVC knows of a checkout: its graph of stages, its lock file, the files it tracks."""

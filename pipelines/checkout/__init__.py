"""A checkout: its root, parameters, settings and results, and the lock for writing to it."""

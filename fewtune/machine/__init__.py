"""The machine: fingerprint, lock, peak, caches, and what its host does to it."""

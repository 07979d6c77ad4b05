"""The machine: fingerprint, lock, peak, caches, and effects of its host."""

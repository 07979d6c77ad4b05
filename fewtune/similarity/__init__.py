"""Similarity: how far the design spaces of two tasks overlap."""

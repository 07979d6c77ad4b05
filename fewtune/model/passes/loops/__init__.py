"""Kernels written as loops: what depends on values, step by step."""

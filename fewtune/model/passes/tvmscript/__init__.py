"""Kernels written in TVMScript: their loops and branches depend on values."""

"""Compilation: kernels are scheduled, built, and exported as a library."""

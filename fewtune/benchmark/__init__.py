"""Benchmarks of whole models and of kernels, all variants in turns."""

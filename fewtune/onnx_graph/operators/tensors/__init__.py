"""Operators on whole tensors: spectra, indexing, splitting, padding, n-grams."""

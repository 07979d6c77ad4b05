"""Operators on whole tensors: spectra, and elements taken or put by their places."""

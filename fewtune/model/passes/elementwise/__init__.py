"""Elementwise operators whose results for NaN and infinities are those of onnxruntime."""

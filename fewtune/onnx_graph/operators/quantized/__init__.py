"""Quantised operators of ONNX and onnxruntime, computed with integers in float32."""

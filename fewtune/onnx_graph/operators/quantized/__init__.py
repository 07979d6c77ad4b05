"""Quantised operators of ONNX and of onnxruntime, as products of whole numbers in float32."""

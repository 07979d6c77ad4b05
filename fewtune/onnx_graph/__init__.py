"""The ONNX graph: read, checked, bound to shapes, rewritten, simplified."""

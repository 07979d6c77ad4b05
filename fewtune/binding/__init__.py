"""Binding: from a given ONNX model to a sorted graph in which every shape is static."""

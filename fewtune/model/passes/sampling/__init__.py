"""Converters of ONNX operators that read between the pixels of an image, or resize it."""

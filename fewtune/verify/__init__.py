"""Verification of imports and libraries: outputs are compared with onnxruntime's."""

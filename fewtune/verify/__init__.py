"""The check that every import, library and comparison passes: outputs against onnxruntime's."""

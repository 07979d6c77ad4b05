"""Models: read, checked, simplified, run by onnxruntime, imported into Relax."""

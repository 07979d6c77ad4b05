"""From an ONNX file as given to a graph of static shapes: sorted, bound, every shape known."""

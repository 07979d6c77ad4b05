"""Tasks: the distinct kernels of a model, with what they cost."""

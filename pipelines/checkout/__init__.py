"""A checkout: where it is, its parameters, settings and results, who may write to it."""

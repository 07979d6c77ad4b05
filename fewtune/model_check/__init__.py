"""`fewtune check`: what a run would do with a model, in seconds and without registering it."""

"""`fewtune check`: reports what a run would do with a model, without registering it."""

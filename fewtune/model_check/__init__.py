"""What a run would do with a model, told in seconds and without registering it."""

"""How far rounding moves a model's values: the model, with factors close to one between them."""

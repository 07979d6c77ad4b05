"""Quantized graphs: every operator in one form (`normalize`), then integer products (`lift`)."""

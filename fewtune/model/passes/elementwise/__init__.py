"""Elementwise operators, of NaN and infinities, too."""

"""Quantised graphs rewritten in integers: products of bytes, and the arithmetic around them."""

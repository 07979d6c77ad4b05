"""Quantised graphs in integers: products of bytes, and the arithmetic around them."""

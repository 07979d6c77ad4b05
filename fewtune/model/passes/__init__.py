"""Passes of the import: converters, Winograd, padding, transposes."""

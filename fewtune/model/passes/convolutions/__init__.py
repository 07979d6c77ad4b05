"""Convolutions written as others that are faster."""

"""TVM, started light: targets, processor traits, vector functions, libraries."""

"""What runs a tuned library: NumPy and TVM's runtime, without TVM's Python package or compiler.

A bundle holds these files as they are. They import `fewtune.errors`, and nothing else of fewtune.
"""

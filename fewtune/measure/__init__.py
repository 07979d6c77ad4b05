"""Measuring: candidates built and timed on workers, variants in turns."""

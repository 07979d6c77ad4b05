"""How fast a contraction's schedule is expected to be, by its decisions alone."""

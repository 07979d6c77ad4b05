"""How fast a contraction's schedule is expected to be, by its decisions alone."""

# What can be chosen instead of a path: the predictor that comes with the library, or none.
AUTO, NEVER = "auto", "never"
# What the names of a predictor's files end in.
TREES, CONDITIONS = ".ubj", ".json"

"""The features of a candidate that a predictor gets, in their order."""

from __future__ import annotations

NAMES = (
    # Of the task.
    "reduction",
    "window",
    "rows",
    "groups",
    "width",
    "weights_bytes",
    "data_bytes",
    "results_bytes",
    "is_cold",
    "is_streamed",
    "shares_vectors",
    # Of its decisions: the register tile.
    "elements",
    "innermost_elements",
    "is_odd_vector",
    "piece",
    "vectors",
    "tile_rows",
    "innermost_rows",
    "accumulators",
    "held",
    "too_few",
    "many",
    "loads",
    "row_axes",
    "last_row_axis",
    "tile_groups",
    # The inner reduction, and the body that it unrolls to.
    "inner_reduction",
    "inner_window",
    "body",
    "unroll",
    "is_unrolled",
    # The levels of threads and of the cache.
    "thread_width",
    "cache_width",
    "thread_rows",
    "cache_rows",
    "thread_groups",
    "cache_groups",
    "threads",
    "odd_threads",
    # Whether the threads split the same axis as the kernel before, and whether the vectors' axis.
    "parted_alike",
    "parts_vectors",
    "written",
    # Where padding is computed: inside its reader, before everything, or at a loop.
    "is_inlined",
    "is_ahead",
    "is_outside",
    "location",
    # What each piece reads and writes.
    "register_weights",
    "register_data",
    "tile_weights",
    "tile_data",
    "cache_weights",
    "cache_data",
    "cache_results",
)

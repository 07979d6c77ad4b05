"""The features of a candidate that a predictor gets, in their order.

Those of the number of cores come last. Samples of a single number of cores teach nothing about
them, so a predictor of such samples is trained without them. Its file names the features it uses.
"""

from __future__ import annotations

import numpy as np

# Of one point, on any number of cores.
OF_POINTS = (
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
# Base-2 logarithms of the number of cores and of the iterations of each; whether some have more.
OF_CORES = ("cores", "iterations_a_core", "is_uneven")
NAMES = OF_POINTS + OF_CORES
_THREADS = OF_POINTS.index("threads")


def with_cores(features: np.ndarray, cores: int) -> np.ndarray:
    """Features, with those of cores added.

    Parameters
    ----------
    features : ndarray, (points, `OF_POINTS`)
    cores : int

    Returns
    -------
    features : ndarray, (points, `NAMES`)
    """
    iterations = features[:, _THREADS]
    ones = np.ones(len(features), dtype=features.dtype)
    uneven = np.round(2.0**iterations) % cores > 0
    of_cores = [np.log2(cores) * ones, iterations - np.log2(cores), uneven]
    return np.column_stack([features, *of_cores]).astype(features.dtype)

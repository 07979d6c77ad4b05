"""The features that a predictor is given of a candidate, in their order.

How many cores share the loops stands at the end. Samples of one number of cores say nothing of it,
so that a predictor of such is trained without it: its file names the features that it goes by.
"""

from __future__ import annotations

from collections.abc import Sequence

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
    # What is left for threads and the cache.
    "thread_width",
    "cache_width",
    "thread_rows",
    "cache_rows",
    "thread_groups",
    "cache_groups",
    "threads",
    "odd_threads",
    # What the threads part: what the kernel before parted, or the vectors.
    "parted_alike",
    "parts_vectors",
    "written",
    # Where what pads the data is computed: within, ahead of everything, or at a loop.
    "is_inlined",
    "is_ahead",
    "is_outside",
    "location",
    # What pieces read and write.
    "register_weights",
    "register_data",
    "tile_weights",
    "tile_data",
    "cache_weights",
    "cache_data",
    "cache_results",
)
# Logarithms to base 2 of the cores and of the iterations that each gets, and whether some get more.
OF_CORES = ("cores", "iterations_a_core", "is_uneven")
NAMES = OF_POINTS + OF_CORES
_THREADS = OF_POINTS.index("threads")


def with_cores(features: np.ndarray, cores: int) -> np.ndarray:
    """Features with what they come to on so many cores.

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


def taught(cores: Sequence[int]) -> tuple[str, ...]:
    """The features that samples of these numbers of cores can teach."""
    return NAMES if len(set(cores)) > 1 else OF_POINTS

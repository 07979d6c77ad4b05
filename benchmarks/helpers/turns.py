"""Compiled models, and the same ones in peers, timed in turns."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from fewtune.machine.affinity import cores_off_the_pool, on_cores
from fewtune.measure import interleave


def in_turns(
    runs: Mapping[str, Callable[[], Any]], own: Collection[str], rounds: int
) -> dict[str, list[float]]:
    """Time inferences in turns.

    Threads are placed as `fewtune.benchmark.variants` places them, which says why.

    Parameters
    ----------
    runs : mapping of str to callable
        One inference each.
    own : collection of str
        Those that TVM's runtime runs.
    rounds : int

    Returns
    -------
    samples : dict of str to list of float
        Seconds of one inference, a sample a round.
    """
    for name in own:
        runs[name]()
    roaming, apart = os.sched_getaffinity(0), cores_off_the_pool()
    placed = {
        name: partial(on_cores, apart if name in own else roaming, run)
        for name, run in runs.items()
    }
    try:
        return interleave.interleave(placed, rounds, together=frozenset(own))
    finally:
        os.sched_setaffinity(0, roaming)

"""Weights as a model finds them: in memory, not in the cache, where all of them do not fit it.

A kernel that is measured again and again has its weights in the cache. In a model whose weights
outgrow it, every kernel reads its own from memory, once an inference: up to a third of its time,
and not the same for every schedule. There, weights are flushed before each measured call
(`fewtune.timing.cache_state`).

The cache that counts is the one a core has for itself. Weights that outgrow it and yet fit the
shared one come from there, if other cores, and on a shared host other machines, left them: the
kernels of SqueezeNet (5 MB, of a shared 32) took in the model 1.1 times what they had taken with
warm weights, 1.0 times what they took with flushed ones; MobileNet's (14 MB) 1.3 and 1.2 times.
"""

from __future__ import annotations

from collections.abc import Sequence

from fewtune.machine.cache_sizes import own_cache_bytes
from fewtune.task.extract import Task
from fewtune.task.weight_layout import free_places
from fewtune.timing.cache_state import buffer_bytes

# Activations need room as well.
_CACHE_FOR_WEIGHTS = 0.5


def weights_bytes(tasks: Sequence[Task]) -> int:
    """Bytes of all weights of a model; a kernel that is called twice has two sets of them."""
    return sum(
        buffer_bytes(task.info.shapes[place], task.mod["main"].params[place].dtype)
        * task.info.weight
        for task in tasks
        for place in free_places(task.mod["main"])
    )


def weights_outgrow_cache(tasks: Sequence[Task], cache_bytes: int | None = None) -> bool:
    """Whether a core has to fetch a model's weights anew in every inference.

    Parameters
    ----------
    tasks : sequence of Task
        All tasks of the model.
    cache_bytes : int, optional
        `own_cache_bytes` unless given; where that is unknown, the answer is no.
    """
    cache_bytes = own_cache_bytes() if cache_bytes is None else cache_bytes
    return cache_bytes is not None and weights_bytes(tasks) > _CACHE_FOR_WEIGHTS * cache_bytes

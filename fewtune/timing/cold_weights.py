"""Cold weights: in memory, not in the cache, as in a model whose weights do not fit the cache.

A kernel that is measured repeatedly has its weights in the cache. In a model whose weights are
larger than the cache, every kernel reads its weights from memory in each inference. This takes up
to a third of its time, and differs by schedule. For such models, weights are flushed before each
measured call (`fewtune.timing.cache_state`).

The cache that counts is a core's own. Larger weights that fit the shared cache come from there,
unless other cores or, on a shared host, other machines evict them. The kernels of SqueezeNet (5 MB,
of a shared 32) took in the model 1.1 times their time with warm weights, and 1.0 times that with
flushed ones; MobileNet's (14 MB) 1.3 and 1.2 times.
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
    """Bytes of all weights of a model; a kernel that is called twice counts twice."""
    return sum(
        buffer_bytes(task.info.shapes[place], task.mod["main"].params[place].dtype)
        * task.info.weight
        for task in tasks
        for place in free_places(task.mod["main"])
    )


def weights_outgrow_cache(tasks: Sequence[Task], cache_bytes: int | None = None) -> bool:
    """Whether a core reads a model's weights from memory in every inference.

    Parameters
    ----------
    tasks : sequence of Task
        All tasks of the model.
    cache_bytes : int, optional
        `own_cache_bytes` unless given; where that is unknown, the answer is no.
    """
    cache_bytes = own_cache_bytes() if cache_bytes is None else cache_bytes
    return cache_bytes is not None and weights_bytes(tasks) > _CACHE_FOR_WEIGHTS * cache_bytes

"""Weights as a model finds them: in memory, not in the cache, where all of them do not fit it.

A kernel that is measured again and again has its weights in the cache. In a model whose weights
outgrow it, every kernel reads its own from memory, once an inference: up to a third of its time,
and not the same for every schedule. There, weights are flushed before each measured call. (AutoTVM
flushed all arguments but the first, ``enable_cpu_cache_flush``; activations, though, were written
by the kernel before and are still there.)

The cache that counts is the one a core has for itself. Weights that outgrow it and yet fit the
shared one come from there, if other cores, and on a shared host other machines, left them: the
kernels of SqueezeNet (5 MB, of a shared 32) took in the model 1.1 times what they had taken with
warm weights, 1.0 times what they took with flushed ones; MobileNet's (14 MB) 1.3 and 1.2 times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fewtune.model.layout_free import FREE
from fewtune.task.extract import Task
from fewtune.tuning.flush import flusher
from fewtune.tvm_runtime import tvm

_FLUSH = "fewtune.flush_weights"
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
# Weights that are so many times the cache leave nothing of themselves in it from call to call, and
# flushing them is for nothing.
_SELF_FLUSHED = 2
# Activations need room as well.
_CACHE_FOR_WEIGHTS = 0.5


def last_level_cache_bytes() -> int | None:
    """Size of the largest cache of a core; None where the system does not tell."""
    return max(_cache_sizes(), default=None)


def own_cache_bytes() -> int | None:
    """Size of the cache before the last, which a core has for itself; None where none is told."""
    sizes = sorted(_cache_sizes())
    return sizes[-2] if len(sizes) > 1 else None


def _cache_sizes() -> list[int]:
    """Bytes of the caches of a core."""
    sizes = []
    for file in _CACHES.glob("index*/size"):
        text = file.read_text().strip()
        number, unit = (text[:-1], text[-1]) if text[-1:] in _UNITS else (text, "")
        if number.isdigit():
            sizes.append(int(number) * _UNITS.get(unit, 1))
    return sizes


def weight_places(module: tvm.IRModule) -> list[int]:
    """Which of a kernel's arguments are weights, as `fewtune.model.layout_free.mark` noted."""
    attributes = module["main"].attrs
    if attributes is None or FREE not in attributes:
        return []
    return [int(place) for place in attributes[FREE]]


def weights_bytes(tasks: Sequence[Task]) -> int:
    """Bytes of all weights of a model; a kernel that is called twice has two sets of them."""
    return sum(
        _bytes(task.info.shapes[place], task.mod["main"].params[place].dtype) * task.info.weight
        for task in tasks
        for place in weight_places(task.mod)
    )


def _bytes(shape: Sequence[int], dtype: Any) -> int:
    return np.dtype(str(dtype)).itemsize * math.prod(int(extent) for extent in shape)


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


def to_be_flushed(weights: Sequence[Any], cache_bytes: int | None) -> list[Any]:
    """Those of a kernel's weights that a cache may still hold from its last call.

    Parameters
    ----------
    weights : sequence of Tensor
    cache_bytes : int or None
        `last_level_cache_bytes`.
    """
    if cache_bytes is None:
        return list(weights)
    most_bytes = _SELF_FLUSHED * cache_bytes
    return [each for each in weights if _bytes(each.shape, each.dtype) <= most_bytes]


class WeightFlusher:
    """Flushes the weights of the kernel under measurement; one a process.

    Parameters
    ----------
    target : Target
        Of a CPU.
    threads : int
    """

    def __init__(self, target: tvm.target.Target, threads: int) -> None:
        self._flush = flusher(target, threads)
        self._weights: list[Any] = []
        tvm.register_global_func(_FLUSH, self._before_call, override=True)

    def evaluate(
        self, built: Any, device: Any, arguments: list[Any], weights: list[Any], count: int
    ) -> list[float]:
        """Seconds of ``count`` single calls, weights flushed before each."""
        self._weights = weights
        evaluator = built.time_evaluator("main", device, number=1, repeat=count, f_preproc=_FLUSH)
        return [float(value) for value in evaluator(*arguments).results]

    def _before_call(self, *_: Any) -> None:
        self._flush(*self._weights)

"""Puts the caches into the state in which a model leaves them, before each measured call.

A kernel that is called repeatedly finds all its data where it left it. In a model it does not:

- The kernel before wrote its activations, each thread a part of them into its own core's cache. A
  schedule that splits another axis among the threads fetches half of them from the other core.
  Under two logs, three kernels of MobileNet took 0.052, 0.022, 0.082 and 0.037, 0.038, 0.122 ms in
  the model. With activations written anew before each call they took 0.046, 0.022, 0.068 and 0.036,
  0.037, 0.092; without, 0.037, 0.018, 0.068 and 0.032, 0.016, 0.067 (a Xeon with 2 MB a core).
  Kernels do not all split the same axis (`fewtune.timing.cache_fill`). Two products between
  Winograd's transforms took 0.077 and 0.061 ms in the model, 0.061 and 0.066 with activations
  written along their outermost axis, 0.088 and 0.068 along the tiles.
- Its weights are in memory, if the model's outgrow the cache (`fewtune.timing.cold_weights`).
- If activations are large, it writes to memory that other kernels used long before. In the slower
  of the machine's two states no cache holds it, most likely
  since the host's other guests share the last one. For three of MobileNet V2's kernels of large
  planes, two schedules each were as fast alone (0.037 and 0.047 ms, 0.172 and 0.175, 0.040 and
  0.043). In the model they took 0.08 and 0.15, 0.19 and 0.24, 0.08 and 0.12; alone, with their
  output flushed before each call, 0.055 and 0.109, 0.22 and 0.27, 0.096 and 0.129. A schedule that
  writes whole rows of channels waits less for that memory than one that writes every sixth line
  (an EPYC).

AutoTVM flushes all arguments but the first (``enable_cpu_cache_flush``), which is a third state.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fewtune.tvm_compat.functions import set_function

# The version of this way of measuring: times of another version cannot be compared.
MEASURING = 5
_BEFORE_CALL = "fewtune.before_call"
# Weights of so many times the cache's size evict themselves in each call: flushing changes nothing.
_SELF_FLUSHED = 2
_LEAST_REWRITTEN_BYTES = 4096
# If activations are so many times as large as the cores' own caches, nothing of the output's memory
# is left there. Below it, MobileNet V2's kernels took about the same time in the model as without
# the flush; at 1.6 to 1.8 times, about half-way between both.
_OUTGROWN = 1.5
# Calls of at least this length are timed one by one in Python, whose microsecond does not matter
# then. TVM's evaluator makes an untimed call each time it is used: three of twelve calls in a race.
_LONG_S = 5e-4


def _size(tensor: Any) -> int:
    return buffer_bytes(tensor.shape, tensor.dtype)


def to_be_flushed(weights: Sequence[Any], cache_bytes: int | None) -> list[Any]:
    """The weights of a kernel that a cache may still hold from its last call.

    Parameters
    ----------
    weights : sequence of Tensor
    cache_bytes : int or None
        `last_level_cache_bytes`.
    """
    if cache_bytes is None:
        return list(weights)
    return [each for each in weights if _size(each) <= _SELF_FLUSHED * cache_bytes]


def to_be_rewritten(activations: Sequence[Any], caches_bytes: int | None) -> list[Any]:
    """The activations of a kernel that the cores may hold in their own caches.

    Little is left there of larger ones when the next kernel begins. Activations of less than a page
    take hardly any time. A tensor of one axis is a scale or an offset, which no kernel before
    wrote. Only float32 activations are rewritten: those of other types are small.

    Parameters
    ----------
    activations : sequence of Tensor
        The kernel's inputs and outputs.
    caches_bytes : int or None
        The cores' own caches together; if None, nothing is rewritten.
    """
    return [
        each
        for each in activations
        if caches_bytes is not None
        and str(each.dtype) == "float32"
        and sum(int(extent) > 1 for extent in each.shape) > 1
        and _LEAST_REWRITTEN_BYTES <= _size(each) <= caches_bytes
    ]


def to_be_evicted(
    activations: Sequence[Any], caches_bytes: int | None, cache_bytes: int | None
) -> list[Any]:
    """A kernel's output, if no cache holds its memory any more when a model calls the kernel.

    Parameters
    ----------
    activations : sequence of Tensor
        The kernel's inputs, and last its output.
    caches_bytes : int or None
        The cores' own caches together; if None, nothing is evicted.
    cache_bytes : int or None
        `last_level_cache_bytes`: a larger output evicts itself.
    """
    whole_bytes = sum(map(_size, activations))
    if not outgrow(whole_bytes, caches_bytes):
        return []
    if cache_bytes is not None and whole_bytes > _SELF_FLUSHED * cache_bytes:
        return []
    return [each for each in activations[-1:] if str(each.dtype) == "float32"]


def outgrow(activations_bytes: float, caches_bytes: int | None) -> bool:
    """Whether a kernel's activations are too large for the cores' own caches.

    Parameters
    ----------
    activations_bytes : float
        Bytes of its inputs and outputs without weights.
    caches_bytes : int or None
        The cores' own caches together; None if unknown.
    """
    return caches_bytes is not None and activations_bytes > _OUTGROWN * caches_bytes


def buffer_bytes(shape: Sequence[int], dtype: Any) -> int:
    """Bytes of a buffer."""
    return np.dtype(str(dtype)).itemsize * math.prod(int(extent) for extent in shape)


class CacheState:
    """Puts the caches into the state in which a model calls a kernel; one for each process.

    Parameters
    ----------
    flush : callable
        Evicts tensors from the caches (`fewtune.timing.cache_flush.flusher`).
    rewrite : callable
        Writes tensors anew (`fewtune.timing.cache_fill.rewriter`).
    """

    def __init__(self, flush: Callable[..., Any], rewrite: Callable[..., Any]) -> None:
        self._flush, self._rewrite = flush, rewrite
        self._flushed: list[Any] = []
        self._activations: list[Any] = []
        set_function(_BEFORE_CALL, self._before_call)

    def evaluate(
        self,
        built: Any,
        device: Any,
        arguments: list[Any],
        flushed: list[Any],
        activations: list[Any],
        count: int,
        once_s: float = 0.0,
    ) -> list[float]:
        """Measure single calls.

        Parameters
        ----------
        built : Module
            With the kernel as ``main``.
        device : Device
        arguments : list of Tensor
        flushed : list of Tensor
            The arguments that are flushed before each call: weights and outputs.
        activations : list of Tensor
            The arguments that are written anew before each call, `sliced`, in reverse order: what
            a kernel reads first, the kernel before it wrote last.
        count : int
        once_s : float
            Seconds of a call, if known; 0 before the first call.

        Returns
        -------
        times_s : list of float
            One a call.
        """
        self._flushed, self._activations = flushed, activations[::-1]
        try:
            if once_s >= _LONG_S:
                return self._one_by_one(built["main"], arguments, count)
            evaluator = built.time_evaluator(
                "main", device, number=1, repeat=count, f_preproc=_BEFORE_CALL
            )
            return [float(value) for value in evaluator(*arguments).results]
        finally:
            # References kept here would keep buffers alive that the worker drops.
            self._flushed, self._activations = [], []

    def _one_by_one(self, function: Any, arguments: list[Any], count: int) -> list[float]:
        times_s = []
        for _ in range(count):
            self._before_call()
            began_s = time.perf_counter()
            function(*arguments)
            times_s.append(time.perf_counter() - began_s)
        return times_s

    def _before_call(self, *_: Any) -> None:
        self._rewrite(*self._activations)
        self._flush(*self._flushed)

"""Puts the caches into the state in which a model leaves them, before each measured call.

A kernel that is called repeatedly finds all its data where it left it. In a model it does not:

- The kernel before wrote its activations, each thread a part of them into its own core's cache. A
  schedule that splits another axis among the threads fetches half of them from the other core.
  Under two logs, three kernels of MobileNet took 0.052, 0.022, 0.082 and 0.037, 0.038, 0.122 ms in
  the model. With activations written anew before each call they took 0.046, 0.022, 0.068 and 0.036,
  0.037, 0.092; without, 0.037, 0.018, 0.068 and 0.032, 0.016, 0.067 (a Xeon with 2 MB a core).
  Kernels do not all split the same axis. Two products between
  Winograd's transforms took 0.077 and 0.061 ms in the model, 0.061 and 0.066 with activations
  written along their outermost axis, 0.088 and 0.068 along the tiles.
- Its weights are in memory, if the model's outgrow the cache (`weights_outgrow_cache`).
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
from math import prod
from typing import Any, NamedTuple

import numpy as np
from tvm.script import tirx as T  # noqa: N812 (TVMScript's own name, which its parser expects)

from fewtune.machine.host import own_cache_bytes
from fewtune.runtime.tvm import build, flat, has_feature, tvm
from fewtune.task.analysis import PRODUCTS, TILES
from fewtune.task.extract import Task
from fewtune.task.weight_layout import free_places
from fewtune.tvm_compat.intrinsics import frames_without_source
from fewtune.tvm_compat.values import set_function, view_of

# Elements of a step: a vector of the widest kind.
_STEP = 16


# Kernels split the outermost axis of their output among the threads. Winograd's transforms split
# the tiles, the second axis there (`parallel_axis`).
@frames_without_source()
def rewrite_kernel(threads: int) -> tvm.IRModule:
    """A kernel that replaces each value of a buffer by one minus it.

    Random numbers between zero and one stay in that range, call after call. Writing them back
    unchanged would not do: a compiler leaves out such a store. The last few elements of each slice
    are not written.

    Parameters
    ----------
    threads : int
        Each thread writes a part of every slice, in order.

    Returns
    -------
    module : IRModule
        ``main`` takes a float32 buffer, ``(slices, elements)``.
    """

    @T.prim_func(s_tir=True)
    def main(given: T.handle) -> None:
        slices, elements = T.int64(), T.int64()
        buffer = T.match_buffer(given, (slices, elements), "float32")
        for thread in T.parallel(threads):
            for piece in T.serial(slices):
                for step in T.serial(elements // (_STEP * threads)):
                    # The index is written out: with a name for it only the last lane is stored.
                    for lane in T.vectorized(_STEP):
                        buffer[
                            piece, (thread * (elements // (_STEP * threads)) + step) * _STEP + lane
                        ] = (
                            T.float32(1)
                            - buffer[
                                piece,
                                (thread * (elements // (_STEP * threads)) + step) * _STEP + lane,
                            ]
                        )

    return tvm.IRModule({"main": main})


def parallel_axis(module_json: str) -> int:
    """The axis of a kernel's inputs and outputs that other kernels split among the threads.

    Parameters
    ----------
    module_json : str
        The kernel, scheduled or not; its blocks' names decide.
    """
    # A decomposed reduction has two blocks, each with a suffix to its name.
    return TILES if f'"{PRODUCTS}' in module_json else 0


def sliced(tensor: Any, axis: int) -> Any:
    """A tensor's memory as ``(slices, elements)``: the axes before ``axis``, and the others."""
    extents = [int(extent) for extent in tensor.shape]
    return view_of(tensor, (prod(extents[:axis]), prod(extents[axis:])))


def rewriter(target: tvm.target.Target, threads: int) -> Callable[..., None]:
    """A function that writes float32 tensors anew, on the machine of a CPU target.

    Parameters
    ----------
    target : Target
    threads : int
        TVM's pool must have as many.

    Returns
    -------
    rewrite : callable
        Takes any number of tensors, each `sliced`, and writes one after the other.
    """
    main = build(rewrite_kernel(threads), target)["main"]

    def rewrite(*tensors: Any) -> None:
        for tensor in tensors:
            main(tensor)

    return rewrite


_FEATURE = "clflushopt"
# float32 values of a cache line.
_LINE = 16


# TVM's function (`cache_flush_cpu_non_first_arg`) uses the older instruction, each of which waits
# for the one before: 11 ms for 16 MB. `clflushopt` (Intel SDM) is not ordered: 0.5 ms on two cores.
# In so short a time the threads of the pool do not fall asleep.
@frames_without_source()
def flush_kernel(threads: int) -> tvm.IRModule:
    """Flushes every cache line of a buffer, on x86.

    Parameters
    ----------
    threads : int
        Threads flush alternating lines.

    Returns
    -------
    module : IRModule
        ``main`` takes a float32 buffer, ``(elements,)``, of at least one element.
    """

    @T.prim_func(s_tir=True)
    def main(given: T.handle) -> None:
        elements = T.int64()
        buffer = T.match_buffer(given, (elements,), "float32")
        # The last element's line is flushed too: a buffer may begin within a line.
        for thread in T.parallel(threads):
            for step in T.serial(elements // (_LINE * threads) + 2):
                place = T.min((step * threads + thread) * _LINE, elements - 1)
                T.evaluate(
                    T.call_llvm_intrin("void", "llvm.x86.clflushopt", T.address_of(buffer[place]))
                )

    return tvm.IRModule({"main": main})


def flusher(target: tvm.target.Target, threads: int) -> Callable[..., None]:
    """A function that flushes tensors, on the machine of a CPU target.

    Parameters
    ----------
    target : Target
    threads : int
        TVM's pool must have as many.

    Returns
    -------
    flush : callable
        Takes any number of tensors.
    """
    by_tvm = tvm.get_global_func("cache_flush_cpu_non_first_arg")
    main = build(flush_kernel(threads), target)["main"] if has_feature(target, _FEATURE) else None

    def flush(*tensors: Any) -> None:
        for tensor in tensors:
            elements = math.prod(int(extent) for extent in tensor.shape)
            if main is None or str(tensor.dtype) != "float32":
                # TVM's function does not flush its first argument.
                by_tvm(tensor, tensor)
            elif elements:
                main(flat(tensor))

    return flush


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


class PreparedKernel(NamedTuple):
    """A built candidate and its arguments.

    Before a call, some weights and the output are flushed, and some activations written anew.
    """

    built: Any
    arguments: list[Any]
    flushed: list[Any]
    activations: list[Any]


class CacheState:
    """Puts the caches into the state in which a model calls a kernel; one for each process.

    Parameters
    ----------
    flush : callable
        Evicts tensors from the caches (`fewtune.timing.cache_state.flusher`).
    rewrite : callable
        Writes tensors anew (`fewtune.timing.cache_state.rewriter`).
    """

    def __init__(self, flush: Callable[..., Any], rewrite: Callable[..., Any]) -> None:
        self._flush, self._rewrite = flush, rewrite
        self._flushed: list[Any] = []
        self._activations: list[Any] = []
        set_function(_BEFORE_CALL, self._before_call)

    def evaluate(
        self, kernel: PreparedKernel, device: Any, count: int, once_s: float = 0.0
    ) -> list[float]:
        """Measure single calls.

        Parameters
        ----------
        kernel : PreparedKernel
        device : Device
        count : int
        once_s : float
            Seconds of a call, if known; 0 before the first call.

        Returns
        -------
        times_s : list of float
            One a call.
        """
        # A kernel reads first what the kernel before it wrote last.
        self._flushed, self._activations = kernel.flushed, kernel.activations[::-1]
        try:
            if once_s >= _LONG_S:
                return self._one_by_one(kernel.built["main"], kernel.arguments, count)
            evaluator = kernel.built.time_evaluator(
                "main", device, number=1, repeat=count, f_preproc=_BEFORE_CALL
            )
            return [float(value) for value in evaluator(*kernel.arguments).results]
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


# Activations need room as well.
_CACHE_FOR_WEIGHTS = 0.5


# In a model whose weights outgrow the cache, every kernel reads its weights from memory: up to a
# third of its time, which differs by schedule. The cache that counts is a core's own: others evict
# weights from a shared one. SqueezeNet's kernels (5 MB, of a shared 32) took in the model 1.1 times
# their time with warm weights and 1.0 times that with flushed ones; MobileNet's (14 MB) 1.3 and 1.2
# times.
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

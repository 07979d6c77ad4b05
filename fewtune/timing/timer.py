"""How built candidates are timed in the process that built them.

On a CPU, the caches are put into the state that a model leaves them in before each call
(`CacheState`). The measuring thread keeps off the cores of TVM's thread pool
(`fewtune.machine.host`).

Touching memory for the first time is most of the cost of filling a buffer: 0.28 s for the 411 MB of
VGG 19's classifier, in every worker and for every batch, if each batch allocates its buffers. Here
buffers are used by all tasks, and stay until larger ones are needed. Parts that no kernel wrote are
not filled again.

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

import statistics
import time
from collections.abc import Callable, Sequence
from math import inf, prod
from typing import Any, NamedTuple

import numpy as np
from tvm.script import tirx as T  # noqa: N812 (TVMScript's own name, which its parser expects)

from fewtune.machine.host import (
    apart_from_the_pool,
    last_level_cache_bytes,
    own_cache_bytes,
    own_caches_bytes,
)
from fewtune.runtime.target import has_own_device, tvm_device
from fewtune.runtime.tvm import build, fill_repeating, flat, has_feature, tvm
from fewtune.task.analysis import PRODUCTS, TILES
from fewtune.task.extract import Task
from fewtune.task.weight_layout import free_places
from fewtune.tvm_compat.intrinsics import frames_without_source
from fewtune.tvm_compat.values import set_function, view_of
from fewtune.util.switches import is_on

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


def to_be_flushed(weights: Sequence[Any], cache_bytes: float) -> list[Any]:
    """The weights of a kernel that a cache may still hold from its last call.

    Parameters
    ----------
    weights : sequence of Tensor
    cache_bytes : float
        `last_level_cache_bytes`; infinite where that is unknown.
    """
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
    activations: Sequence[Any], caches_bytes: int | None, cache_bytes: float
) -> list[Any]:
    """A kernel's output, if no cache holds its memory any more when a model calls the kernel.

    Parameters
    ----------
    activations : sequence of Tensor
        The kernel's inputs, and last its output.
    caches_bytes : int or None
        The cores' own caches together; if None, nothing is evicted.
    cache_bytes : float
        `last_level_cache_bytes`, infinite where that is unknown: a larger output evicts itself.
    """
    whole_bytes = sum(map(_size, activations))
    if caches_bytes is None or whole_bytes <= _OUTGROWN * caches_bytes:
        return []
    if whole_bytes > _SELF_FLUSHED * cache_bytes:
        return []
    return [each for each in activations[-1:] if str(each.dtype) == "float32"]


def buffer_bytes(shape: Sequence[int], dtype: Any) -> int:
    """Bytes of a buffer."""
    return np.dtype(str(dtype)).itemsize * prod(int(extent) for extent in shape)


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

    On the machine of a CPU target; TVM's pool must have as many threads.
    """

    def __init__(self, target: tvm.target.Target, threads: int) -> None:
        # Writes a float32 tensor anew, which is `sliced`.
        self.rewrite = build(rewrite_kernel(threads), target)["main"]
        has_flush = has_feature(target, _FEATURE)
        self._flush_lines = build(flush_kernel(threads), target)["main"] if has_flush else None
        self._flush_by_tvm = tvm.get_global_func("cache_flush_cpu_non_first_arg")
        self._flushed: list[Any] = []
        self._activations: list[Any] = []
        set_function(_BEFORE_CALL, self._before_call)

    def flush(self, tensor: Any) -> None:
        """Evict a tensor from the caches."""
        if self._flush_lines is None or str(tensor.dtype) != "float32":
            # TVM's function does not flush its first argument.
            self._flush_by_tvm(tensor, tensor)
        elif prod(tensor.shape):
            self._flush_lines(flat(tensor))

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
        for each in self._activations:
            self.rewrite(each)
        for each in self._flushed:
            self.flush(each)


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


# So many numbers are drawn; repeated, they fill a buffer.
_FILLED_AT_ONCE = 2**16
# More memory than this is not kept from task to task.
_MOST_HELD_BYTES = 2 * 2**30

Specs = Sequence[tuple[Sequence[int], str]]


# The number and dtype of a kernel's argument: such buffers of all tasks share memory.
_Place = tuple[int, str]


class Buffers:
    """The buffers of one task at a time.

    Parameters
    ----------
    device : Device
    fill : callable
        Fills a tensor with random numbers (`filler`).
    """

    def __init__(self, device: Any, fill: Callable[[Any], None]) -> None:
        self._device = device
        self._fill = fill
        self._memory: dict[_Place, Any] = {}
        # The number of elements, from the first on, that still are as they were filled.
        self._filled: dict[_Place, int] = {}
        self._of: str | None = None
        self._views: list[Any] = []

    def borrow(self, number: int, elements: int) -> Any | None:
        """Memory of a float32 argument, which a check fills with random numbers of its own.

        They stay there: kernels of floats take as long with any ordinary numbers.

        Parameters
        ----------
        number : int
            Of the argument.
        elements : int

        Returns
        -------
        tensor : Tensor or None
            Of one axis; None where nothing of that size is held.
        """
        place = number, "float32"
        held = self._memory.get(place)
        if held is None or prod(held.shape) < elements:
            return None
        return view_of(held, (elements,))

    @property
    def held_bytes(self) -> int:
        """Bytes that are kept from task to task."""
        return sum(buffer_bytes(each.shape, each.dtype) for each in self._memory.values())

    def arguments(
        self, specs: Specs, shapes: Sequence[tuple[int, ...]], read_only: Sequence[int]
    ) -> list[Any]:
        """A kernel's arguments, filled when its task begins.

        Parameters
        ----------
        specs : sequence of (sequence of int, str)
            Shapes and dtypes of the task's buffers.
        shapes : sequence of tuple of int
            As this kernel reads them: weights may have another layout, of as many elements.
        read_only : sequence of int
            Places of buffers that no kernel of the task writes: its weights.

        Returns
        -------
        tensors : list of Tensor
        """
        key = repr(specs)
        if key != self._of:
            self._of, self._views = None, []
            self._views = [self._view(i, *spec, i in read_only) for i, spec in enumerate(specs)]
            self._of = key
        return [
            view if tuple(view.shape) == tuple(shape) else view_of(view, shape)
            for view, shape in zip(self._views, shapes, strict=True)
        ]

    def forget(self) -> None:
        """Forget the task; its memory is freed only if it is more than may be kept."""
        self._of, self._views = None, []
        if self.held_bytes > _MOST_HELD_BYTES:
            self._memory.clear()
            self._filled.clear()

    def _view(self, number: int, shape: Sequence[int], dtype: str, is_read_only: bool) -> Any:
        """A buffer of a task, in the memory of its place."""
        place, elements = (number, dtype), prod(shape)
        held = self._memory.get(place)
        if held is None or prod(held.shape) < elements:
            # The old memory is freed first: both may be too much.
            held = None
            self._memory.pop(place, None)
            self._filled.pop(place, None)
            held = self._memory[place] = tvm.runtime.empty((elements,), dtype, self._device)
        view = view_of(held, shape)
        if self._filled.get(place, 0) < elements:
            self._fill(view)
        self._filled[place] = max(elements, self._filled.get(place, 0)) if is_read_only else 0
        return view


def filler(*, on_host: bool) -> Callable[[Any], None]:
    """A function that fills a buffer with random numbers.

    TVM's own function draws each number: 0.66 s for the 411 MB of VGG's classifier. On the host,
    one block of numbers is repeated.
    """
    by_tvm = tvm.get_global_func("tvm.contrib.random.random_fill_for_measure")
    block = np.random.default_rng(0).random(_FILLED_AT_ONCE, dtype="float32")

    def fill(buffer: Any) -> None:
        if on_host and str(buffer.dtype) == "float32":
            fill_repeating(buffer, block)
        else:
            by_tvm(buffer)

    return fill


# Single calls of one sample, if the caches are prepared before each.
_MOST_SINGLE_CALLS = 8
# The fastest of so many calls of multiply-adds is near the machine's peak.
_FIXED_CALLS = 40


class Race(NamedTuple):
    """How long a candidate is measured, given the best so far.

    A candidate is run once. The short measurement follows only if it can still win, and the full
    one only if it can win after the short one. Times are seconds. With ``cold_weights`` every call
    finds its weights in memory (`CacheState`).
    """

    best_s: float | None
    drop_first_ratio: float = 3.0
    drop_short_ratio: float = 1.1
    short_s: float = 0.003
    short_repeats: int = 3
    full_s: float = 0.006
    full_repeats: int = 5
    cold_weights: bool = False


class Measured(NamedTuple):
    """What a worker reports about a candidate's measurement.

    Attributes
    ----------
    run_s : list of float
        Seconds of one call, one sample for each repeat, from the longest measurement that it
        reached.
    most_flops_s : float or None
        Operations a second of multiply-adds: about the machine's peak. None on a GPU or a board.
    """

    run_s: list[float]
    most_flops_s: float | None = None


class BuiltKernel(NamedTuple):
    """A compiled candidate.

    Its code, the shapes of its buffers, which of them are weights, and the axis of the others that
    other kernels split among the threads.
    """

    code: Any
    shapes: list[tuple[int, ...]]
    weight_places: list[int]
    parallel_axis: int


class Timer:
    """Times built candidates; owns their argument buffers.

    Parameters
    ----------
    target : Target
    threads : int
        Threads of a measured kernel.
    device : Device, optional
        A board's, where caches are not prepared before a call; this machine's unless given.
    fill : callable, optional
        Fills a tensor of the board with random numbers.

    Attributes
    ----------
    buffers : Buffers
        The memory of arguments.
    fixed_kernel : MultiplyAdd or None
        What starts TVM's threads, and tells the machine's peak.
    caches : CacheState or None
        Prepares caches before a call. Like the kernel, it is made by `get_ready`, on a CPU.
    """

    def __init__(
        self,
        target: tvm.target.Target,
        threads: int,
        device: Any = None,
        fill: Callable[[Any], None] | None = None,
    ) -> None:
        self._target = target
        self._device = tvm_device(target) if device is None else device
        self._threads = threads
        self._on_host = device is None and not has_own_device(target)
        self._most_flops_s: float | None = None
        self.fixed_kernel: Any = None
        self.caches: CacheState | None = None
        self._cache_bytes = last_level_cache_bytes() or inf
        self._own_caches_bytes = own_caches_bytes(threads)
        self.buffers = Buffers(self._device, fill or filler(on_host=self._on_host))

    def get_ready(self) -> None:
        """Compile what all measurements need, which takes a third of a second; run nothing."""
        if self._on_host and self.caches is None:
            from fewtune.machine.peak import MultiplyAdd

            self.fixed_kernel = MultiplyAdd(self._target, self._threads)
            self.caches = CacheState(self._target, self._threads)

    def race(self, built: BuiltKernel, specs: Specs, race: Race) -> Measured:
        """Race a candidate."""
        kernel = self._kernel(built, specs, cold=race.cold_weights)
        self._start_pool()
        with apart_from_the_pool():
            return Measured(self._raced(kernel, race), self._most_flops_s)

    def _start_pool(self) -> None:
        """Start TVM's thread pool by calls of a kernel, so that its cores can be avoided."""
        if self._on_host and self._most_flops_s is None:
            fastest_s = min(self.fixed_kernel.once_s() for _ in range(_FIXED_CALLS))
            self._most_flops_s = self.fixed_kernel.flops / fastest_s

    def _raced(self, kernel: PreparedKernel, race: Race) -> list[float]:
        first = self._evaluate(kernel, 1, 1)
        best = race.best_s
        if best is not None and first[0] > best * race.drop_first_ratio:
            return first
        estimate = first[0]
        calls = _calls(race.short_s, estimate, most=1000)
        short = self._evaluate(kernel, calls, race.short_repeats, estimate)
        estimate = sorted(short)[len(short) // 2]
        if best is not None and estimate > best * race.drop_short_ratio:
            return short
        calls = _calls(race.full_s, estimate, most=10000)
        return self._evaluate(kernel, calls, race.full_repeats, estimate)

    def _kernel(self, built: BuiltKernel, specs: Specs, *, cold: bool) -> PreparedKernel:
        """A candidate with its arguments, those to flush and those to rewrite."""
        arguments = self.buffers.arguments(specs, built.shapes, built.weight_places)
        if not self._on_host or not is_on("cache_states"):
            return PreparedKernel(built.code, arguments, [], [])
        # This must not happen within a measurement.
        self.get_ready()
        weights = [arguments[place] for place in built.weight_places]
        activations = [a for i, a in enumerate(arguments) if i not in built.weight_places]
        evicted = to_be_evicted(activations, self._own_caches_bytes, self._cache_bytes)
        kept = activations[: len(activations) - len(evicted)]
        rewritten = to_be_rewritten(kept, self._own_caches_bytes)
        return PreparedKernel(
            built.code,
            arguments,
            [*(to_be_flushed(weights, self._cache_bytes) if cold else []), *evicted],
            [sliced(each, built.parallel_axis) for each in rewritten],
        )

    def _evaluate(
        self, kernel: PreparedKernel, number: int, repeat: int, once_s: float = 0.0
    ) -> list[float]:
        """Seconds of one call, ``repeat`` samples of ``number`` calls each."""
        if kernel.flushed or kernel.activations:
            assert self.caches is not None
            count = min(number, _MOST_SINGLE_CALLS) * repeat
            times_s = self.caches.evaluate(kernel, self._device, count, once_s)
            return [statistics.median(times_s[i::repeat]) for i in range(repeat)]
        evaluator = kernel.built.time_evaluator("main", self._device, number=number, repeat=repeat)
        return [float(value) for value in evaluator(*kernel.arguments).results]


def _calls(sample_s: float, once_s: float, most: int) -> int:
    """Calls that fill a sample."""
    return max(1, min(most, round(sample_s / max(once_s, 1e-7))))

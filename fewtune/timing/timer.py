"""How built candidates are timed in the process that built them.

On a CPU, the caches are put into the state that a model leaves them in before each call
(`fewtune.timing.cache_state`). The measuring thread keeps off the cores of TVM's thread pool
(`fewtune.machine.host`).

Touching memory for the first time is most of the cost of filling a buffer: 0.28 s for the 411 MB of
VGG 19's classifier, in every worker and for every batch, if each batch allocates its buffers. Here
buffers are used by all tasks, and stay until larger ones are needed. Parts that no kernel wrote are
not filled again.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from fewtune.machine.host import apart_from_the_pool, last_level_cache_bytes, own_caches_bytes
from fewtune.runtime.target import has_own_device, tvm_device
from fewtune.runtime.tvm import fill_repeating, tvm
from fewtune.timing.cache_state import (
    CacheState,
    PreparedKernel,
    buffer_bytes,
    flusher,
    rewriter,
    sliced,
    to_be_evicted,
    to_be_flushed,
    to_be_rewritten,
)
from fewtune.tvm_compat.values import view_of
from fewtune.util.switches import is_on

# So many numbers are drawn; repeated, they fill a buffer.
_FILLED_AT_ONCE = 2**16
# More memory than this is not kept from task to task.
_MOST_HELD_BYTES = 2 * 2**30

Specs = Sequence[tuple[Sequence[int], str]]


class _Place(NamedTuple):
    """The place and dtype of a kernel's argument: such buffers of all tasks share memory."""

    number: int
    dtype: str


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
        self._lent: set[_Place] = set()
        self._of: str | None = None
        self._views: list[Any] = []

    def lend(self, elements: int) -> Any | None:
        """Memory for float32 numbers, for use by a model until the next task is measured.

        Returns
        -------
        tensor : Tensor or None
            Of one axis; None where nothing of that size, or up to twice as large, is held.
        """
        self._of, self._views = None, []
        fitting = {
            place: prod(held.shape)
            for place, held in self._memory.items()
            if place.dtype == "float32"
            and place not in self._lent
            and elements <= prod(held.shape) <= 2 * elements
        }
        if not fitting:
            return None
        place = min(fitting, key=fitting.__getitem__)
        self._lent.add(place)
        self._filled[place] = 0
        return view_of(self._memory[place], (elements,))

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
        place = _Place(number, "float32")
        held = self._memory.get(place)
        if held is None or place in self._lent or prod(held.shape) < elements:
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
        """Forget the task; its memory is freed only if it is more than may be kept.

        Memory from `lend` may not be used afterwards.
        """
        self._of, self._views = None, []
        self._lent.clear()
        if self.held_bytes > _MOST_HELD_BYTES:
            self._memory.clear()
            self._filled.clear()

    def _view(self, number: int, shape: Sequence[int], dtype: str, is_read_only: bool) -> Any:
        """A buffer of a task, in the memory of its place."""
        place, elements = _Place(number, dtype), prod(shape)
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
    finds its weights in memory (`fewtune.timing.cache_state`).
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
        self._cache_bytes = last_level_cache_bytes()
        self._own_caches_bytes = own_caches_bytes(threads)
        self.buffers = Buffers(self._device, fill or filler(on_host=self._on_host))

    def get_ready(self) -> None:
        """Compile what all measurements need, which takes a third of a second; run nothing."""
        if self._on_host and self.caches is None:
            from fewtune.machine.peak import MultiplyAdd

            self.fixed_kernel = MultiplyAdd(self._target, self._threads)
            self.caches = CacheState(
                flusher(self._target, self._threads), rewriter(self._target, self._threads)
            )

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

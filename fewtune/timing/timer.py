"""How built candidates are timed in the process that built them.

The measuring thread keeps off the cores of TVM's thread pool (`fewtune.machine.host`). A kernel
that is called repeatedly finds its data in the caches; in a model it may not. Both states were
prepared before each call once: libraries were as fast without (eleven tunings of seven models, 0.97
to 1.03), so doubt is settled by turns in the model alone.

Touching memory for the first time is most of the cost of filling a buffer: 0.28 s for the 411 MB of
VGG 19's classifier, in every worker and for every batch, if each batch allocates its buffers. Here
buffers are used by all tasks, and stay until larger ones are needed. Parts that no kernel wrote are
not filled again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from fewtune.machine.host import apart_from_the_pool
from fewtune.runtime.target import has_own_device, tvm_device
from fewtune.runtime.tvm import fill_repeating, tvm
from fewtune.task.access import bytes_of
from fewtune.tvm_compat.values import view_of

# Calls of at least this length are timed one by one in Python, whose microsecond does not matter
# then. TVM's evaluator makes an untimed call each time it is used: three of twelve calls in a race.
_LONG_S = 5e-4


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
        return sum(map(bytes_of, self._memory.values()))

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


# The fastest of so many calls of multiply-adds is near the machine's peak.
_FIXED_CALLS = 40


class Race(NamedTuple):
    """How long a candidate is measured, given the best so far.

    A candidate is run once. The short measurement follows only if it can still win, and the full
    one only if it can win after the short one. Times are seconds.
    """

    best_s: float | None
    drop_first_ratio: float = 3.0
    drop_short_ratio: float = 1.1
    short_s: float = 0.001
    short_repeats: int = 3
    full_s: float = 0.002
    full_repeats: int = 5


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
    """A compiled candidate: its code, the shapes of its buffers, which of them are weights."""

    code: Any
    shapes: list[tuple[int, ...]]
    weight_places: list[int]


class Timer:
    """Times built candidates; owns their argument buffers.

    Parameters
    ----------
    target : Target
    threads : int
        Threads of a measured kernel.
    device : Device, optional
        A board's; this machine's unless given.
    fill : callable, optional
        Fills a tensor of the board with random numbers.

    Attributes
    ----------
    buffers : Buffers
        The memory of arguments.
    fixed_kernel : MultiplyAdd or None
        What starts TVM's threads, and tells the machine's peak. `get_ready` makes it, on a CPU.
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
        self.buffers = Buffers(self._device, fill or filler(on_host=self._on_host))

    def get_ready(self) -> None:
        """Compile what all measurements need; run nothing."""
        if self._on_host and self.fixed_kernel is None:
            from fewtune.machine.peak import MultiplyAdd

            self.fixed_kernel = MultiplyAdd(self._target, self._threads)

    def race(self, built: BuiltKernel, specs: Specs, race: Race) -> Measured:
        """Race a candidate."""
        arguments = self.buffers.arguments(specs, built.shapes, built.weight_places)
        self._start_pool()
        with apart_from_the_pool():
            return Measured(self._raced(built.code, arguments, race), self._most_flops_s)

    def _start_pool(self) -> None:
        """Start TVM's thread pool by calls of a kernel, so that its cores can be avoided."""
        if self._on_host and self._most_flops_s is None:
            self.get_ready()
            fastest_s = min(self.fixed_kernel.once_s() for _ in range(_FIXED_CALLS))
            self._most_flops_s = self.fixed_kernel.flops / fastest_s

    def _raced(self, code: Any, arguments: list[Any], race: Race) -> list[float]:
        first = self._evaluate(code, arguments, 1, 1)
        best = race.best_s
        if best is not None and first[0] > best * race.drop_first_ratio:
            return first
        estimate = first[0]
        calls = _calls(race.short_s, estimate, most=1000)
        short = self._evaluate(code, arguments, calls, race.short_repeats, estimate)
        estimate = sorted(short)[len(short) // 2]
        if best is not None and estimate > best * race.drop_short_ratio:
            return short
        calls = _calls(race.full_s, estimate, most=10000)
        return self._evaluate(code, arguments, calls, race.full_repeats, estimate)

    def _evaluate(
        self, code: Any, arguments: list[Any], number: int, repeat: int, once_s: float = 0.0
    ) -> list[float]:
        """Seconds of one call, ``repeat`` samples of ``number`` calls each."""
        if self._on_host and once_s >= _LONG_S:
            main = code["main"]
            return [_timed(main, arguments, number) for _ in range(repeat)]
        evaluator = code.time_evaluator("main", self._device, number=number, repeat=repeat)
        return [float(value) for value in evaluator(*arguments).results]


def _timed(function: Any, arguments: list[Any], calls: int) -> float:
    """Seconds of one of so many calls."""
    began_s = time.perf_counter()
    for _ in range(calls):
        function(*arguments)
    return (time.perf_counter() - began_s) / calls


def _calls(sample_s: float, once_s: float, most: int) -> int:
    """Calls that fill a sample."""
    return max(1, min(most, round(sample_s / max(once_s, 1e-7))))

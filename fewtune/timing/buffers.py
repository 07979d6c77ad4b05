"""The memory of measured kernels: taken once, filled with random numbers, used by task after task.

Most of what filling a buffer costs is memory that is touched for the first time: 0.28 s for the
411 MB of VGG 19's classifier, in every worker and for every batch, where each batch took its
buffers anew. Here they stay until larger ones are needed, and what no kernel wrote since is not
filled again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from fewtune.runtime.tvm import fill_repeating, tvm
from fewtune.timing.cache_state import buffer_bytes

# Numbers that are drawn to fill a buffer, and repeated.
_FILLED_AT_ONCE = 2**16

Specs = Sequence[tuple[Sequence[int], str]]


class _Place(NamedTuple):
    """Which argument of a kernel, and its dtype: buffers of all tasks there share their memory."""

    number: int
    dtype: str


class Buffers:
    """The buffers of one task at a time.

    Parameters
    ----------
    device : Device
    fill : callable
        Fills a tensor with random numbers (`filler`).
    most_held_bytes : int
        More than this is not held on to from task to task.
    """

    def __init__(
        self, device: Any, fill: Callable[[Any], None], most_held_bytes: int = 2 * 2**30
    ) -> None:
        self._device = device
        self._fill = fill
        self._most_held_bytes = most_held_bytes
        self._memory: dict[_Place, Any] = {}
        # Elements from the first on that are as they were filled.
        self._filled: dict[_Place, int] = {}
        self._lent: set[_Place] = set()
        self._of: str | None = None
        self._views: list[Any] = []

    def lend(self, elements: int) -> Any | None:
        """Memory for float32 numbers that a model may use until the next task is measured.

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
        return self._memory[place]._create_view((elements,))  # noqa: SLF001

    @property
    def held_bytes(self) -> int:
        """Bytes that are held from task to task."""
        return sum(buffer_bytes(each.shape, each.dtype) for each in self._memory.values())

    def arguments(
        self, specs: Specs, shapes: Sequence[tuple[int, ...]], read_only: Sequence[int]
    ) -> list[Any]:
        """A kernel's arguments, filled when its task comes.

        Parameters
        ----------
        specs : sequence of (sequence of int, str)
            Shapes and dtypes of the task's buffers.
        shapes : sequence of tuple of int
            As this kernel reads them, weights laid out anew: as many elements.
        read_only : sequence of int
            Places of buffers that no kernel of the task writes, its weights.

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
            view if tuple(view.shape) == tuple(shape) else view._create_view(shape)  # noqa: SLF001
            for view, shape in zip(self._views, shapes, strict=True)
        ]

    def forget(self) -> None:
        """Let go of the task; of its memory only where that is more than is to be held.

        What was lent is not used any more.
        """
        self._of, self._views = None, []
        self._lent.clear()
        if self.held_bytes > self._most_held_bytes:
            self._memory.clear()
            self._filled.clear()

    def _view(self, number: int, shape: Sequence[int], dtype: str, is_read_only: bool) -> Any:
        """A buffer of a task, in the memory of its place."""
        place, elements = _Place(number, dtype), prod(shape)
        held = self._memory.get(place)
        if held is None or prod(held.shape) < elements:
            # First the old memory is let go: both may be too much.
            held = None
            self._memory.pop(place, None)
            self._filled.pop(place, None)
            held = self._memory[place] = tvm.runtime.empty((elements,), dtype, self._device)
        view = held._create_view(tuple(shape))  # noqa: SLF001 (TVM's only way)
        if self._filled.get(place, 0) < elements:
            self._fill(view)
        self._filled[place] = max(elements, self._filled.get(place, 0)) if is_read_only else 0
        return view


def filler(*, on_host: bool) -> Callable[[Any], None]:
    """What fills a buffer with random numbers.

    TVM's own function draws each of them: 0.66 s for the 411 MB of VGG's classifier. On the host
    one block of them is repeated.
    """
    by_tvm = tvm.get_global_func("tvm.contrib.random.random_fill_for_measure")
    block = np.random.default_rng(0).random(_FILLED_AT_ONCE, dtype="float32")

    def fill(buffer: Any) -> None:
        if on_host and str(buffer.dtype) == "float32":
            fill_repeating(buffer, block)
        else:
            by_tvm(buffer)

    return fill

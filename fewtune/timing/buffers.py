"""The memory of measured kernels: allocated once, filled with random numbers, used by all tasks.

Touching memory for the first time is most of the cost of filling a buffer: 0.28 s for the 411 MB of
VGG 19's classifier, in every worker and for every batch, if each batch allocates its buffers. Here
buffers stay until larger ones are needed. Parts that no kernel wrote are not filled again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from fewtune.runtime.tvm import fill_repeating, tvm
from fewtune.timing.cache_state import buffer_bytes
from fewtune.tvm_compat.values import view_of

# So many numbers are drawn; repeated, they fill a buffer.
_FILLED_AT_ONCE = 2**16

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
    most_held_bytes : int
        More memory than this is not kept from task to task.
    """

    def __init__(
        self, device: Any, fill: Callable[[Any], None], most_held_bytes: int = 2 * 2**30
    ) -> None:
        self._device = device
        self._fill = fill
        self._most_held_bytes = most_held_bytes
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
        if self.held_bytes > self._most_held_bytes:
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

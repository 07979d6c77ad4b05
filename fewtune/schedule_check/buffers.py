"""Buffers of checked kernels, which are reused from one check to the next.

The first use of a page of memory costs more than a copy into it. For the 411 MB of weights of
VGG 19's first product, new arrays took over a second, and reused ones a tenth of a second. Large
arguments lie in the memory in which the candidate was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from fewtune.runtime.tvm import tvm
from fewtune.tvm_compat.tensors import view_of

# Arrays of at least this size lie in borrowed memory.
_LARGE_BYTES = 2**24


class Buffers:
    """Tensors of the host, one for each parameter number, which grow as needed.

    ``borrow`` lends memory for the float32 elements of a large parameter, given its number and
    theirs (`fewtune.timing.buffers.Buffers.borrow`).
    """

    def __init__(self, borrow: Callable[[int, int], Any] | None = None) -> None:
        self._held: dict[int, Any] = {}
        self._borrow = borrow

    @property
    def held_bytes(self) -> int:
        """Memory that the tensors take."""
        return sum(int(tensor.shape[0]) for tensor in self._held.values())

    def tensor(self, place: int, shape: Sequence[int], dtype: str) -> tuple[Any, np.ndarray]:
        """A tensor of undefined content, and the same memory as an array.

        Both are valid until the next call with this ``place``.
        """
        kind = np.dtype(dtype)
        size = max(1, prod(shape) * kind.itemsize)
        if self._borrow is not None and size >= _LARGE_BYTES and dtype == "float32":
            lent = self._borrow(place, prod(shape))
            if lent is not None:
                return view_of(lent, shape), np.from_dlpack(lent).reshape(shape)
        held = self._held.get(place)
        if held is None or int(held.shape[0]) < size:
            # The smaller one is freed before the larger one is allocated.
            self._held.pop(place, None)
            held = self._held[place] = tvm.runtime.empty((size,), "uint8")
        array = np.from_dlpack(held)[: prod(shape) * kind.itemsize].view(kind).reshape(shape)
        return view_of(held, shape, dtype), array

"""Memory for what checked kernels read and write, kept from one check to the next.

A page that a process uses for the first time costs more than the copy into it: of the 411 MB of
weights of VGG 19's first product, a check's own arrays took over a second, and kept ones a tenth.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from math import prod
from typing import Any

import numpy as np

from fewtune.runtime.tvm import tvm, usable_cores

# What is copied by more than one thread; a thread's start costs less then.
_LARGE_BYTES = 2**24


def empty(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """An array in memory that TVM allocated.

    NumPy asks for huge pages, which took four times as long to get on a virtual machine.
    """
    size = prod(shape) * dtype.itemsize
    held = tvm.runtime.empty((max(1, size),), "uint8")
    return np.from_dlpack(held)[:size].view(dtype).reshape(shape)


def copy(source: np.ndarray, target: np.ndarray) -> None:
    """Copy an array into another of its shape, large ones by several threads."""
    axis = int(np.argmax(target.shape)) if target.ndim else 0
    parts = min(usable_cores(), target.shape[axis] if target.ndim else 1)
    if target.nbytes < _LARGE_BYTES or parts < 2:  # noqa: PLR2004 (one part is no part)
        np.copyto(target, source)
        return
    bounds = np.linspace(0, target.shape[axis], parts + 1).astype(int)
    pieces = [
        (slice(None),) * axis + (slice(int(begin), int(end)),)
        for begin, end in zip(bounds[:-1], bounds[1:], strict=True)
    ]
    with ThreadPoolExecutor(parts) as threads:
        list(threads.map(lambda piece: np.copyto(target[piece], source[piece]), pieces))


class Buffers:
    """Tensors of the host, one for each place of a kernel's arguments, as large as was needed."""

    def __init__(self) -> None:
        self._held: dict[int, Any] = {}

    @property
    def held_bytes(self) -> int:
        """Memory that they take."""
        return sum(int(tensor.shape[0]) for tensor in self._held.values())

    def tensor(self, place: int, shape: Sequence[int], dtype: str) -> tuple[Any, np.ndarray]:
        """A tensor of any content, and the same memory as an array.

        Both hold until the next call with this place.
        """
        kind = np.dtype(dtype)
        size = max(1, prod(shape) * kind.itemsize)
        held = self._held.get(place)
        if held is None or int(held.shape[0]) < size:
            # The smaller one goes first.
            self._held.pop(place, None)
            held = self._held[place] = tvm.runtime.empty((size,), "uint8")
        array = np.from_dlpack(held)[: prod(shape) * kind.itemsize].view(kind).reshape(shape)
        return held._create_view(tuple(shape), dtype), array  # noqa: SLF001 (TVM's only way)

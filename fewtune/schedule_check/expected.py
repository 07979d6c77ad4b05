"""Expected outputs of a task, with an allowance for each element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from fewtune.schedule_check.numbers import ROUNDING, SUM

# Allowance over the expected effect of rounding.
_TIMES = 4.0
# Exponentials underflow near these values; implementations differ in where exactly.
_SMALLEST = {"float16": 2.0**-22, "float32": 2.0**-120, "float64": 2.0**-1000}
# Elements that are compared at once. A difference of so many stays in a core's cache, and in memory
# that NumPy has used before.
_PART = 2**14


@dataclass(frozen=True)
class Expected:
    """One output: its right values, and by how much each element may differ.

    Attributes
    ----------
    value, allowance : array
        Of the output's shape. If the allowance is None, no element may differ.
    """

    value: np.ndarray
    allowance: np.ndarray | None

    @property
    def held_bytes(self) -> int:
        """Memory of both arrays."""
        return self.value.nbytes + (0 if self.allowance is None else self.allowance.nbytes)

    @staticmethod
    def of(value: np.ndarray, error: Any, dtype: str) -> Expected:
        """From a value, its error bound, and the dtype in which it is written."""
        if isinstance(error, float) and error == 0 and dtype not in ROUNDING:
            return Expected(value, None)
        allowance = np.asarray(error, dtype="float32") * np.float32(_TIMES)
        if dtype in ROUNDING:
            # In one array: the first use of memory costs as much as the arithmetic.
            own = np.abs(value, out=np.empty_like(value))
            own *= np.float32(2 * ROUNDING[dtype])
            own += allowance
            own += np.float32(_SMALLEST[dtype])
            np.copyto(own, np.inf, where=np.isnan(own))
            allowance = own.astype("float32", copy=False)
        return Expected(value, np.broadcast_to(allowance, value.shape))

    @staticmethod
    def from_kernel(value: np.ndarray, dtype: str, length: int, is_rounded: bool) -> Expected:
        """From an output of a kernel that is known to be right.

        Parameters
        ----------
        value : array
        dtype : str
        length : int
            Elements of the kernel's longest reduction.
        is_rounded : bool
            Whether the kernel computes with floats at all.
        """
        if dtype not in ROUNDING:
            # A float halfway between two integers may be rounded to either.
            return Expected.of(value, 0.25 if is_rounded and value.dtype.kind in "iu" else 0.0, "")
        unit = np.float32(SUM * ROUNDING[dtype] * sqrt(length))
        return Expected.of(value, unit * (1 + np.abs(value)), dtype)

    def fault(self, found: np.ndarray) -> str:
        """What differs from the right values; empty if nothing does."""
        if self.agrees(found):
            return ""
        wrong = ~_right(found, self.value, self.allowance)
        place = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
        index = [int(each) for each in place]
        return (
            f"{int(np.count_nonzero(wrong))} of {wrong.size} elements differ; at {index} it has "
            f"{found[place]:.6g}, right is {self.value[place]:.6g}"
        )

    def agrees(self, found: np.ndarray) -> bool:
        """Whether an output is right: a few elements are compared at a time.

        Differences of a whole output would be written to new memory, whose first use takes longer
        than the comparison.
        """
        a, b = found.reshape(-1), self.value.reshape(-1)
        room = None if self.allowance is None else _flat(self.allowance)
        for begin in range(0, a.size, _PART):
            part = slice(begin, begin + _PART)
            if not _right(a[part], b[part], None if room is None else room[part]).all():
                return False
        return True


def _right(found: np.ndarray, value: np.ndarray, allowance: np.ndarray | None) -> np.ndarray:
    """Which elements are right."""
    if allowance is None:
        return np.asarray(found == value)
    if found.dtype.kind != "f":
        return np.asarray(np.abs(found.astype("float64") - value) <= allowance)
    with np.errstate(invalid="ignore", over="ignore"):
        moved = np.asarray(found - value)
        right = np.abs(moved, out=moved) <= allowance
    if not right.all():
        right |= (found == value) | (np.isnan(found) & np.isnan(value))
    return right


def _flat(array: np.ndarray) -> np.ndarray:
    """An array with one axis; one value that is repeated is not copied."""
    if not any(array.strides) and array.size:
        return np.broadcast_to(array[(0,) * array.ndim], (array.size,))
    return array.reshape(-1)


def is_usable(outputs: Sequence[Expected]) -> bool:
    """Whether most elements of each output are finite, so that a comparison can find a fault."""
    # The mean of booleans takes several times as long as counting them.
    return all(
        2 * np.count_nonzero(np.isfinite(each.value)) > each.value.size
        for each in outputs
        if each.value.size
    )

"""Right outputs of a task, and how far those of another right kernel may be from them."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np

from fewtune.schedule_check.arguments import ROUNDING

# Difference of two orders of summation, in roundings of one of the root of the sum's length.
_ORDER = 32.0
# Exponentials and the like are polynomials, which are off by a few units of float32.
_FUNCTION = 2.0**-16
# Times the movement of an output when its arguments are moved by a rounding.
_MOVED = 8.0
# Share of elements, and least number, that may take another step if floats are rounded to steps.
_STEP_SHARE, _STEP_LEAST = 0.005, 2
# Elements that are compared at once: their differences stay in a core's cache.
_PART = 2**14


@dataclass(frozen=True)
class TaskOutput:
    """One output of a kernel that is known to be right.

    An element may differ by ``relative`` times its magnitude, plus ``absolute``. If the output
    ``may_step``, a few elements may differ: integers by one, floats and booleans freely.
    """

    value: np.ndarray
    relative: float
    absolute: float
    may_step: bool

    @staticmethod
    def of(
        value: np.ndarray, length: int, may_step: bool, moved: np.ndarray | None = None
    ) -> TaskOutput:
        """From an output of a kernel whose longest sum has ``length`` terms.

        ``moved`` is the output for arguments that were moved by a rounding.
        """
        if value.dtype.name not in ROUNDING:
            return TaskOutput(value, 0.0, 0.0, may_step)
        size = _mean(np.abs(value))
        unit = _ORDER * ROUNDING[value.dtype.name] * sqrt(length) + _FUNCTION
        more = 0.0
        if moved is not None and size:
            with np.errstate(invalid="ignore", over="ignore"):
                more = _MOVED * _mean(np.abs(moved.astype("float64") - value)) / size
        return TaskOutput(value, unit + more, (unit + more) * size, may_step)

    def fault(self, found: np.ndarray) -> str:
        """What differs from the right values; empty if nothing does."""
        a, b = found.reshape(-1), self.value.reshape(-1)
        parts = [slice(begin, begin + _PART) for begin in range(0, a.size, _PART)]
        wrong = np.concatenate([np.zeros(0, int), *(self._wrong(a, b, part) for part in parts)])
        few = max(_STEP_LEAST, int(_STEP_SHARE * a.size))
        if self.may_step and len(wrong) <= few and self._are_near(a[wrong], b[wrong]):
            return ""
        if not len(wrong):
            return ""
        place = np.unravel_index(int(wrong[0]), self.value.shape)
        return (
            f"{len(wrong)} of {a.size} elements differ; at {[int(each) for each in place]} it has "
            f"{a[wrong[0]]:.6g}, right is {b[wrong[0]]:.6g}"
        )

    def _wrong(self, found: np.ndarray, right: np.ndarray, part: slice) -> np.ndarray:
        """Places of elements of a part that differ by more than allowed."""
        a, b = found[part], right[part]
        if a.dtype.kind != "f":
            return np.flatnonzero(a != b) + part.start
        with np.errstate(invalid="ignore", over="ignore"):
            is_right = np.abs(a - b) <= self.relative * np.abs(b) + self.absolute
        if not is_right.all():
            is_right |= (a == b) | (np.isnan(a) & np.isnan(b))
        return np.flatnonzero(~is_right) + part.start

    @staticmethod
    def _are_near(found: np.ndarray, right: np.ndarray) -> bool:
        if found.dtype.kind in "iu":
            return bool(np.all(np.abs(found.astype("float64") - right) <= 1))
        return bool(np.all(np.isfinite(found) == np.isfinite(right)))


def _mean(values: np.ndarray) -> float:
    """Mean of the finite values; a few infinite ones hide no fault."""
    finite = values[np.isfinite(values)]
    return float(finite.mean(dtype="float64")) if finite.size else 0.0

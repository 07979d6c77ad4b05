"""Comparison of outputs with expected ones, element by element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# Largest error of a single element, over its noise, which is a root mean square of a few runs. With
# Winograd's tiles of 4, one element in 100,000 of a single convolution was off by 27 times its
# noise (Zen 5): its error depends on the largest input of its tile.
PEAK = 36.0
# Largest root mean square of all elements' errors over their noise: a small fault of a whole tensor
# changes many elements a little.
BULK = 1.0
# Share of elements, and least number, that this mean leaves out: values that were rounded to the
# other quantisation step.
_APART_SHARE, _APART_LEAST = 0.01, 2
# Share of bytes, and least number, that may be off by one if the kernel's inputs were equal: values
# halfway between two bytes, up to the last bits of a float.
_STEP_SHARE, _STEP_LEAST = 0.005, 2
# Messages do not give the ratio of an error to its allowance beyond this.
_COUNTABLE = 1e6


@dataclass(frozen=True)
class Expected:
    """One output of the reference, and its noise: how far rounding may move it.

    ``noise`` has the shape and the unit of ``values``. For floats and bytes it is the root mean
    square of each element's movement in a few runs; for other integers and booleans, the largest.
    """

    name: str
    values: np.ndarray
    noise: np.ndarray


@dataclass(frozen=True)
class Difference:
    """How far one output, or the worst of several, is from the expected one.

    Attributes
    ----------
    allowances : float
        Error over allowance: 1 at most for a right output, infinite if shapes, types or places of
        NaN differ.
    max_error : float
        Largest difference of a finite element, in the output's unit.
    max_relative_error : float
        ``max_error`` over the largest finite magnitude of the output: for the user, not for the
        verdict.
    text : str
        What differs, and where; empty if every element is within its allowance.
    draws : int
        Of inputs that outputs were compared on; 0 if that is one, or not counted.
    """

    allowances: float = 0.0
    max_error: float = 0.0
    max_relative_error: float = 0.0
    text: str = ""
    draws: int = 0

    def worse(self, other: Difference) -> Difference:
        """The larger figures of both, with the text of the one with more allowances."""
        further = other if other.allowances > self.allowances else self
        return Difference(
            further.allowances,
            max(self.max_error, other.max_error),
            max(self.max_relative_error, other.max_relative_error),
            further.text,
            max(self.draws, other.draws),
        )


def compare_outputs(
    actual: Sequence[np.ndarray], expected: Sequence[Expected], factor: float = 1.0
) -> Difference:
    """Compare all outputs, in the same order; ``factor`` multiplies every allowance.

    The worst difference is returned.
    """
    if len(actual) != len(expected):
        text = f"{len(actual)} outputs where onnxruntime has {len(expected)}"
        return Difference(np.inf, np.inf, np.inf, text)
    worst = Difference()
    for array, each in zip(actual, expected, strict=True):
        worst = worst.worse(compare(np.asarray(array), each, factor))
    return worst


def compare(
    actual: np.ndarray, expected: Expected, factor: float = 1.0, kind: str = "output"
) -> Difference:
    """Compare one output, or a value of another ``kind``.

    Shapes must be the same; NaN and infinities must stand in the same places. Every other element
    must lie within `PEAK` times its own noise, and all of them together within `BULK` times.
    """
    name, values = expected.name, expected.values
    if actual.shape != values.shape:
        text = f"{kind} {name!r} has shape {list(actual.shape)}, onnxruntime's {list(values.shape)}"
        return Difference(np.inf, np.inf, np.inf, text)
    # Inside, TVM keeps booleans as bytes. An output must have its type, by which it is read.
    is_odd = (
        actual.dtype.kind != values.dtype.kind and "b" not in actual.dtype.kind + values.dtype.kind
    )
    if is_odd or (kind == "output" and actual.dtype != values.dtype):
        text = f"{kind} {name!r} is {actual.dtype.name}, onnxruntime's {values.dtype.name}"
        return Difference(np.inf, np.inf, np.inf, text)
    if not values.size:
        return Difference()
    ours, theirs = actual.astype(np.float64), values.astype(np.float64)
    finite = np.isfinite(theirs)
    odd = _odd(ours, theirs, finite)
    with np.errstate(invalid="ignore"):
        error = np.where(finite & np.isfinite(ours), np.abs(ours - theirs), 0.0)
    max_error = float(error.max())
    scale = float(np.abs(theirs[finite]).max()) if finite.any() else 0.0
    relative = max_error / scale if scale > 0 else float(max_error > 0)
    if odd.any():
        text = f"{kind} {name!r} {_at(np.argmax(odd), actual, values)}; {_share(odd)}"
        return Difference(np.inf, max_error, relative, text)
    units = _units(error, expected.noise)
    limit, by_bulk = (PEAK, BULK) if is_graded(values.dtype) else (1.0, np.inf)
    used = float(units.max()) / factor / limit
    # The largest few, which take long to find, only add to the mean.
    if _root_mean_square(units) / factor / by_bulk > used:
        used = max(used, _bulk(units) / factor / by_bulk)
    if used <= 1:
        return Difference(used, max_error, relative)
    text = f"{kind} {name!r} {_at(np.argmax(units), actual, values)}"
    far = units > limit * factor
    text += f"; {_share(far)}" if far.any() else "; many elements are off by a little"
    times = f"{used:.3g} times" if used < _COUNTABLE else "far more than"
    return Difference(used, max_error, relative, f"{text}, by {times} what rounding allows")


def compare_steps(actual: np.ndarray, expected: Expected) -> Difference:
    """Compare bytes computed from equal inputs: a few may be off by one, none by more."""
    name, values = expected.name, expected.values
    off = np.abs(actual.astype(np.int64) - values.astype(np.int64))
    if not off.any():
        return Difference()
    count, most = int(np.count_nonzero(off)), int(off.max())
    used = count / max(_STEP_LEAST, _STEP_SHARE * off.size)
    if most > 1:
        used = max(used, float(most))
    if used <= 1:
        return Difference(used)
    text = f"value {name!r} {_at(np.argmax(off), actual, values)}; {_share(off > 0)}"
    text += f", by {most} at most; of equal inputs {_STEP_SHARE:.1%} may, by 1"
    return Difference(used, text=text)


def is_graded(dtype: np.dtype) -> bool:
    """Whether values are rounded: floats, or integers of eight bits, which may be quantised."""
    return dtype.kind == "f" or is_byte(dtype)


def is_byte(dtype: np.dtype) -> bool:
    """Whether values are integers of eight bits, such as pixels and quantised values."""
    return dtype.kind in "iu" and dtype.itemsize == 1


def _odd(ours: np.ndarray, theirs: np.ndarray, finite: np.ndarray) -> np.ndarray:
    """Elements of which one is NaN or infinite and the other is not equal."""
    same = np.isnan(ours) & np.isnan(theirs) | (ours == theirs)
    return ~same & ~(finite & np.isfinite(ours))


def _units(error: np.ndarray, noise: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        units = error / noise.astype(np.float64)
    return np.where(error == 0, 0.0, units)


def _bulk(units: np.ndarray) -> float:
    """Root mean square without the largest few; zero if there are only few elements."""
    apart = max(_APART_LEAST, int(_APART_SHARE * units.size))
    if units.size <= 2 * apart:
        return 0.0
    return _root_mean_square(np.partition(units.ravel(), units.size - apart)[:-apart])


def _root_mean_square(units: np.ndarray) -> float:
    with np.errstate(over="ignore"):
        return float(np.sqrt(np.mean(np.square(units))))


def _at(place: np.intp, actual: np.ndarray, values: np.ndarray) -> str:
    index = [int(each) for each in np.unravel_index(place, values.shape)]
    ours, theirs = actual[tuple(index)], values[tuple(index)]
    return f"is {ours:.6g} at {index}, onnxruntime's {theirs:.6g}"


def _share(where: np.ndarray) -> str:
    count = int(np.count_nonzero(where))
    return f"{count} of {where.size} elements differ"

"""Where a library writes the values of a model, found by content.

Kernels are fused, and lay out their results otherwise than ONNX does. But what they write is some
value of the model. A run of the untuned library shows which.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

# How far a value may be off and still be known as the one that a kernel was to write: part of the
# mean magnitude, and of elements where they are no numbers.
_ALIKE = 0.05
_PROBES = 512
# Axes of more than one element whose orders are tried; of more, only the given one.
_MOST_AXES = 5


class Site(NamedTuple):
    """Where a library writes a value.

    Attributes
    ----------
    kernel : str
        As the import names it.
    call : int
        From 0, among the calls of this kernel.
    shape : tuple of int
        Of what it writes.
    axes : tuple of int
        The order in which the value's axes stand there.
    """

    kernel: str
    call: int
    shape: tuple[int, ...]
    axes: tuple[int, ...]

    def value_of(self, written: np.ndarray, expected: np.ndarray) -> np.ndarray | None:
        """What was written, with the value's own axes.

        Parameters
        ----------
        written : array
            Of this site's shape, or larger in one axis: then the place that fits best is meant.
        expected : array
            The value as it should be.

        Returns
        -------
        value : array or None
            None where what was written has another rank or type.
        """
        if written.shape != self.shape:
            place = _part(written, self.laid_out(expected))
            if place is None:
                return None
            written = written[place]
        there = [expected.shape[axis] for axis in self.axes]
        return written.reshape(there).transpose(np.argsort(self.axes))

    def laid_out(self, expected: np.ndarray) -> np.ndarray:
        """A value as it is written here."""
        return expected.transpose(self.axes).reshape(self.shape)

    def with_value(self, written: np.ndarray, expected: np.ndarray) -> np.ndarray:
        """What was written, with the value as it should be in its place."""
        wanted = self.laid_out(expected)
        if written.shape == self.shape:
            return np.asarray(wanted, order="C")
        place, made = _part(written, wanted), written.copy()
        if place is not None:
            made[place] = wanted
        return made


class Written(NamedTuple):
    """What one call of a kernel wrote."""

    kernel: str
    call: int
    array: np.ndarray


def find_sites(
    written: Sequence[Written], values: Mapping[str, np.ndarray]
) -> list[tuple[Site, str]]:
    """Which value of the model each kernel writes.

    Parameters
    ----------
    written : sequence of Written
    values : mapping of arrays
        By name, as onnxruntime computes them.

    Returns
    -------
    sites : list of pairs
        A site and the name of the value, in the order in which kernels run. A value may be written
        more than once, each time in another layout. Kernels that write none of the values, as
        parts of Winograd's transforms do, are in none.
    """
    marks: dict[int, list[tuple[str, tuple[float, float]]]] = {}
    for name, value in values.items():
        if value.size > 1:
            marks.setdefault(value.size, []).append((name, _mark(value)))
    found = []
    for each in written:
        own = _mark(each.array)
        best: tuple[float, str, tuple[int, ...]] | None = None
        for name, mark in marks.get(each.array.size, []):
            if values[name].dtype == each.array.dtype and _near(own, mark):
                for axes in _orders(values[name].shape):
                    away = _away(each.array, values[name].transpose(axes))
                    # Of equal ones the last: ReLU is fused into what comes before it.
                    if away <= _ALIKE and (best is None or away <= best[0]):
                        best = away, name, axes
        if best is not None:
            _, name, axes = best
            found.append((Site(each.kernel, each.call, each.array.shape, axes), name))
    return found


def _mark(array: np.ndarray) -> tuple[float, float]:
    """Two figures that the order of elements does not change."""
    wide = np.nan_to_num(array.ravel().astype(np.float64), posinf=0.0, neginf=0.0)
    with np.errstate(over="ignore"):
        return float(np.abs(wide).sum()), float(np.sqrt(np.square(wide).sum()))


def _near(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return all(abs(a - b) <= 2 * _ALIKE * max(a, b) for a, b in zip(one, other, strict=True))


def _orders(shape: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Orders of the axes that lay out elements differently."""
    wide = [axis for axis, extent in enumerate(shape) if extent > 1]
    alone = [axis for axis, extent in enumerate(shape) if extent == 1]
    if len(wide) > _MOST_AXES:
        yield tuple(range(len(shape)))
        return
    for order in itertools.permutations(wide):
        yield (*alone, *order)


def _away(written: np.ndarray, value: np.ndarray) -> float:
    """Mean difference over mean magnitude, of a few elements first; share that differs of ints."""
    ours = written.reshape(-1)
    step = max(1, ours.size // _PROBES)
    if step > 1:
        places = np.unravel_index(np.arange(0, ours.size, step), value.shape)
        away = _mean_away(ours[::step], value[places])
        if away > 4 * _ALIKE:
            return away
    return _mean_away(ours, value.reshape(-1))


def _mean_away(ours: np.ndarray, theirs: np.ndarray) -> float:
    if theirs.dtype.kind != "f":
        return float(np.mean(ours != theirs))
    finite = np.isfinite(theirs)
    if np.mean(np.isfinite(ours) != finite) > _ALIKE:
        return np.inf
    both = finite & np.isfinite(ours)
    a, b = ours[both].astype(np.float64), theirs[both].astype(np.float64)
    if not a.size:
        return 0.0
    magnitude = float(np.abs(b).mean())
    away = float(np.abs(a - b).mean())
    return away / magnitude if magnitude > 0 else float(away > 0)


def _part(whole: np.ndarray, wanted: np.ndarray) -> tuple[slice, ...] | None:
    """Where in a buffer, along the axis that differs, what is nearest to what is wanted lies."""
    if whole.ndim != wanted.ndim or whole.dtype != wanted.dtype:
        return None
    wider = [axis for axis in range(whole.ndim) if whole.shape[axis] != wanted.shape[axis]]
    if len(wider) != 1 or whole.shape[wider[0]] < wanted.shape[wider[0]]:
        return None
    (axis,) = wider
    extent = wanted.shape[axis]
    rows = np.moveaxis(whole, axis, -1).reshape(-1, whole.shape[axis])
    given = np.moveaxis(wanted, axis, -1).reshape(-1, extent)
    some = np.unique(np.linspace(0, len(rows) - 1, 32).astype(int))
    rows, given = (each[some].astype(np.float64) for each in (rows, given))
    with np.errstate(invalid="ignore", over="ignore"):
        away = [
            np.nan_to_num(np.abs(rows[:, start : start + extent] - given), nan=0.0).sum()
            for start in range(whole.shape[axis] - extent + 1)
        ]
    start = int(np.argmin(away))
    return (*[slice(None)] * axis, slice(start, start + extent))

"""Values between a model's operators, compared where a library's kernels write them.

What is wrong deep inside a network may move its outputs less than rounding does: biases drown it,
or a gate close to zero. So each kernel's own result is compared, too. Which of the model's values
a kernel writes is found by content, in a run of the untuned library: kernels are fused, and lay
out their results otherwise than ONNX does, but what they write is some value of the model.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from fewtune.runtime.executable import Observer
from fewtune.verify.comparison import Difference, Expected, compare, compare_steps

# Times an output's allowance: nothing drowns these values, and a fault of 1 % is far above it.
ROOM = 4.0
# How far a value may be off and still be known as the one that a kernel was to write: part of the
# mean magnitude, and of elements where they are no numbers.
_ALIKE = 0.05
_PROBES = 512
# Axes of more than one element whose orders are tried; of more, only the given one.
_MOST_AXES = 5


class Runs(Protocol):
    """A library that can be run: `fewtune.runtime.executable.CompiledModel`, or one elsewhere."""

    def outputs(self, inputs: list[np.ndarray]) -> list[np.ndarray]:
        """Run once on ``inputs`` and copy the outputs back."""


@runtime_checkable
class Observable(Protocol):
    """A library whose kernels can be looked at while it runs: one on this machine."""

    def observed(self, inputs: list[np.ndarray], observe: Observer) -> list[np.ndarray]:
        """Run once, and show every kernel's arguments after its call."""


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
            return np.ascontiguousarray(wanted)
        place, made = _part(written, wanted), written.copy()
        if place is not None:
            made[place] = wanted
        return made


class Tap(NamedTuple):
    """A value inside, where it is written, and how far rounding may move it.

    Attributes
    ----------
    site : Site
    expected : Expected
    restored : bool
        Whether later kernels read the value as it should be: a byte that takes the other step
        moves a tenth of all bytes twenty layers later. So each kernel is judged by itself.
    stepped : bool
        Whether its bytes may be off by a step, and few of them, whatever their noise.
    """

    site: Site
    expected: Expected
    restored: bool = False
    stepped: bool = False


class Written(NamedTuple):
    """What one call of a kernel wrote."""

    kernel: str
    call: int
    array: np.ndarray


def check_taps(
    compiled: Observable, inputs: list[np.ndarray], taps: Sequence[Tap], factor: float = 1.0
) -> Difference:
    """Run a library once and compare what its kernels write.

    Parameters
    ----------
    compiled : Observable
    inputs : list of arrays
        What the taps' values were computed of.
    taps : sequence of Tap
        Those that the library does not write as they are, since it writes them in place or keeps
        other kernels, are left out.
    factor : float
        Multiplies every allowance.

    Returns
    -------
    difference : Difference
        Its allowances are those of the value that is furthest out; its text names the first one,
        in the order in which kernels run. Its errors are zero: they are about outputs.
    """
    wanted = {(tap.site.kernel, tap.site.call): tap for tap in taps}
    used, first = 0.0, ""

    def look(kernel: str, call: int, arguments: Sequence[object]) -> None:
        nonlocal used, first
        tap = wanted.get((kernel, call))
        array = _last(arguments)
        if tap is None or array is None:
            return
        value = tap.site.value_of(array, tap.expected.values)
        if value is None:
            return
        if tap.stepped:
            found = compare_steps(value, tap.expected)
        else:
            found = compare(value, tap.expected, factor * ROOM, "value")
        _restore(tap, arguments[-1], array)
        used = max(used, found.allowances)
        first = first or (f"kernel {kernel}: {found.text}" if found.text else "")

    compiled.observed(inputs, look)
    return Difference(used, 0.0, 0.0, first)


def written_by(
    compiled: Observable, inputs: list[np.ndarray], taps: Sequence[Tap] = ()
) -> list[Written]:
    """Run a library once and keep what each kernel writes; later ones read taps as restored."""
    found = []
    known = {(tap.site.kernel, tap.site.call): tap for tap in taps}

    def look(kernel: str, call: int, arguments: Sequence[object]) -> None:
        array = _last(arguments)
        if array is not None:
            found.append(Written(kernel, call, array.copy()))
            if (kernel, call) in known:
                _restore(known[kernel, call], arguments[-1], array)

    compiled.observed(inputs, look)
    return found


def _restore(tap: Tap, tensor: Any, written: np.ndarray) -> None:
    if tap.restored and written.dtype == tap.expected.values.dtype:
        tensor.copyfrom(tap.site.with_value(written, tap.expected.values))


def _last(arguments: Sequence[object]) -> np.ndarray | None:
    """A kernel's result: its last tensor."""
    given = arguments[-1] if arguments else None
    return given.numpy() if hasattr(given, "numpy") else None


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

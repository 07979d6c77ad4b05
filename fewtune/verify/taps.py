"""Compares a library's intermediate values where its kernels write them.

A fault deep inside a network may change its outputs less than rounding does, since biases or a gate
close to zero hide it. So each kernel's own result is compared as well. Which of the model's
values it writes is found by their likeness.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from fewtune.runtime.executable import Observer
from fewtune.verify.comparison import Difference, Expected, compare, compare_steps

# Largest difference at which a value is recognised: mean difference over mean distance from the
# mean, or share of elements for integers and NaN.
_ALIKE = 0.05
# Part of the magnitude that is added to that distance: it is below rounding where all elements are
# equal.
_EQUAL = 1e-5
# Elements by which values are told apart before all elements are compared, and the difference, in
# the same measure, from which on they are not.
_PROBES, _UNLIKE = 128, 4 * _ALIKE
# Orders of up to so many axes, not counting those of extent 1, are tried; otherwise only the given
# one.
_MOST_AXES = 5


class Site(NamedTuple):
    """Where a library writes a value.

    Attributes
    ----------
    kernel : str
        Name of the kernel in the import.
    call : int
        Number of the call of this kernel, from 0.
    shape : tuple of int
        Shape of the kernel's output.
    axes : tuple of int
        Order of the value's axes in the output.
    """

    kernel: str
    call: int
    shape: tuple[int, ...]
    axes: tuple[int, ...]

    def value_of(self, written: np.ndarray, expected: np.ndarray) -> np.ndarray | None:
        """The written value with the axes in their own order; None if its rank or type is another.

        If the written array is larger along one axis, the part that fits the expected value best is
        taken.
        """
        if written.shape != self.shape:
            place = _part(written, self.laid_out(expected))
            if place is None:
                return None
            written = written[place]
        there = [expected.shape[axis] for axis in self.axes]
        return written.reshape(there).transpose(np.argsort(self.axes))

    def laid_out(self, expected: np.ndarray) -> np.ndarray:
        """A value in the layout of this site."""
        return expected.transpose(self.axes).reshape(self.shape)

    def with_value(self, written: np.ndarray, expected: np.ndarray) -> np.ndarray:
        """A copy of the written array with the expected value in place of the written one."""
        wanted = self.laid_out(expected)
        if written.shape == self.shape:
            return np.asarray(wanted, order="C")
        place, made = _part(written, wanted), written.copy()
        if place is not None:
            made[place] = wanted
        return made


class Written(NamedTuple):
    """Output of one call of a kernel."""

    kernel: str
    call: int
    array: np.ndarray


def find_sites(
    written: Sequence[Written], values: Mapping[str, np.ndarray]
) -> list[tuple[Site, str]]:
    """Find the value of the model that each kernel writes, in the order in which kernels run.

    A value may be written more than once, each time in another layout. Kernels that write none of
    the values, such as parts of Winograd's transforms, are left out.
    """
    sizes = {(each.array.size, each.array.dtype) for each in written}
    probed = {kind: _probes(kind, values) for kind in sizes}
    found = []
    for each in written:
        ours = each.array.reshape(-1)
        pairs, probes = probed[ours.size, ours.dtype]
        if not pairs:
            continue
        best: tuple[float, str, tuple[int, ...]] | None = None
        near = _away(ours[_probed(ours.size)], probes) <= _UNLIKE
        for name, axes in itertools.compress(pairs, near):
            away = float(_away(ours, values[name].transpose(axes).reshape(-1)))
            # The last of equal values: ReLU is fused into the operator before it.
            if away <= _ALIKE and (best is None or away <= best[0]):
                best = away, name, axes
        if best is not None:
            _, name, axes = best
            found.append((Site(each.kernel, each.call, each.array.shape, axes), name))
    return found


def _orders(shape: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Orders of the axes that give different layouts."""
    wide = [axis for axis, extent in enumerate(shape) if extent > 1]
    alone = [axis for axis, extent in enumerate(shape) if extent == 1]
    if len(wide) > _MOST_AXES:
        yield tuple(range(len(shape)))
        return
    for order in itertools.permutations(wide):
        yield (*alone, *order)


def _probed(size: int) -> np.ndarray:
    """Places of the elements by which arrays of a size are told apart."""
    return np.arange(0, size, max(1, size // _PROBES))


def _probes(
    kind: tuple[int, np.dtype], values: Mapping[str, np.ndarray]
) -> tuple[list[tuple[str, tuple[int, ...]]], np.ndarray]:
    """The values of a size and type in each order of their axes, and their probed elements."""
    alike = {n: v for n, v in values.items() if v.size > 1 and (v.size, v.dtype) == kind}
    pairs = [(name, axes) for name, value in alike.items() for axes in _orders(value.shape)]
    laid_out = (alike[name].transpose(axes) for name, axes in pairs)
    places = _probed(kind[0])
    probes = [each[np.unravel_index(places, each.shape)] for each in laid_out]
    return pairs, np.array(probes, kind[1]).reshape(len(pairs), len(places))


def _away(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Mean difference along the last axis; of floats, over the mean distance from the mean.

    Elements that are near to each other are near in any order. So their distances say more than
    their magnitudes: the logits of a text detector are all between -14 and -18.
    """
    if theirs.dtype.kind != "f":
        return np.mean(ours != theirs, axis=-1)
    ours, theirs = ours.astype(np.float64), theirs.astype(np.float64)
    finite = np.isfinite(theirs)
    both = finite & np.isfinite(ours)
    counts = np.maximum(both.sum(axis=-1, keepdims=True), 1)

    def mean(distances: np.ndarray) -> np.ndarray:
        total: np.ndarray = np.sum(distances, axis=-1, keepdims=True, where=both)
        return total / counts

    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        spread = mean(np.abs(theirs - mean(theirs))) + _EQUAL * mean(np.abs(theirs))
        away = mean(np.abs(ours - theirs))
        away = np.where(spread > 0, away / spread, away > 0)[..., 0]
    return np.maximum(away, np.mean(np.isfinite(ours) != finite, axis=-1))


def _part(whole: np.ndarray, wanted: np.ndarray) -> tuple[slice, ...] | None:
    """The part of a buffer that is nearest to an array, along the one axis whose extents differ."""
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


# Factor of the allowance of intermediate values: nothing hides their faults, and one of 1 % is far
# above it.
ROOM = 4.0


class Runs(Protocol):
    """A library that can be run: `fewtune.runtime.executable.CompiledModel`, or one elsewhere."""

    def outputs(self, inputs: list[np.ndarray]) -> list[np.ndarray]:
        """Run once on ``inputs`` and copy the outputs back."""


@runtime_checkable
class Observable(Protocol):
    """A library on this machine, whose kernels can be observed while it runs."""

    def observed(self, inputs: list[np.ndarray], observe: Observer) -> list[np.ndarray]:
        """Run once, and pass every kernel's arguments to ``observe`` after its call."""


class Tap(NamedTuple):
    """An intermediate value, the site that writes it, and its noise.

    Attributes
    ----------
    site : Site
    expected : Expected
    restored : bool
        Whether the expected value replaces the written one, so that each kernel is judged by
        itself. Otherwise one byte that is off by one changes a tenth of all bytes twenty layers
        later.
    stepped : bool
        Whether a few of its bytes may be off by one, and none by more, whatever their noise.
    """

    site: Site
    expected: Expected
    restored: bool = False
    stepped: bool = False


def check_taps(
    compiled: Observable, inputs: list[np.ndarray], taps: Sequence[Tap], factor: float = 1.0
) -> Difference:
    """Run a library once and compare the values that its kernels write.

    Taps that it does not write, because it has other kernels or works in place, are left out. The
    allowances are those of the worst value; the text names the first wrong one, in the order in
    which kernels run. The errors are zero, since they are about outputs.
    """
    used, first = 0.0, ""

    def look(written: Written, tap: Tap | None) -> None:
        nonlocal used, first
        value = tap and tap.site.value_of(written.array, tap.expected.values)
        if tap is None or value is None:
            return
        if tap.stepped:
            found = compare_steps(value, tap.expected)
        else:
            found = compare(value, tap.expected, factor * ROOM, "value")
        used = max(used, found.allowances)
        first = first or (f"kernel {written.kernel}: {found.text}" if found.text else "")

    _observe(compiled, inputs, taps, look)
    return Difference(used, 0.0, 0.0, first)


def written_by(
    compiled: Observable, inputs: list[np.ndarray], taps: Sequence[Tap] = ()
) -> list[Written]:
    """Run a library once and copy the output of each kernel; taps are restored."""
    found: list[Written] = []

    def look(written: Written, _tap: Tap | None) -> None:
        found.append(written._replace(array=written.array.copy()))

    _observe(compiled, inputs, taps, look)
    return found


def _observe(
    compiled: Observable,
    inputs: list[np.ndarray],
    taps: Sequence[Tap],
    look: Callable[[Written, Tap | None], None],
) -> None:
    """Run a library once; each kernel's output, its last argument, is looked at, then restored."""
    known = {(tap.site.kernel, tap.site.call): tap for tap in taps}

    def observe(kernel: str, call: int, arguments: Sequence[Any]) -> None:
        if not arguments or not hasattr(arguments[-1], "numpy"):
            return
        written = Written(kernel, call, arguments[-1].numpy())
        tap = known.get((kernel, call))
        look(written, tap)
        if tap is not None and tap.restored and written.array.dtype == tap.expected.values.dtype:
            arguments[-1].copyfrom(tap.site.with_value(written.array, tap.expected.values))

    compiled.observed(inputs, observe)

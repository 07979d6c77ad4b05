"""Compares a library's intermediate values where its kernels write them.

A fault deep inside a network may change its outputs less than rounding does, since biases or a gate
close to zero hide it. So each kernel's own result is compared as well. Which of the model's
values it writes is found by their likeness.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
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
# Most values that a kernel's output is compared with.
_MOST_LIKE = 32
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
    alike: dict[tuple[int, np.dtype], list[str]] = {}
    for name, value in values.items():
        if value.size > 1:
            alike.setdefault((value.size, value.dtype), []).append(name)
    norms = {kind: np.array([_norms(values[n]) for n in names]) for kind, names in alike.items()}
    laid_out = cache(lambda name: _laid_out(values[name]))
    found = []
    for each in written:
        kind = each.array.size, each.array.dtype
        best: tuple[float, str, tuple[int, ...]] | None = None
        near = _nearest(_norms(each.array), norms[kind]) if kind in norms else []
        names = [alike[kind][place] for place in near]
        for name, axes in _similar(each.array, {name: laid_out(name) for name in names}):
            away = _mean_away(each.array.reshape(-1), values[name].transpose(axes).reshape(-1))
            # The last of equal values: ReLU is fused into the operator before it.
            if away <= _ALIKE and (best is None or away <= best[0]):
                best = away, name, axes
        if best is not None:
            _, name, axes = best
            found.append((Site(each.kernel, each.call, each.array.shape, axes), name))
    return found


def _norms(array: np.ndarray) -> tuple[float, float]:
    """Sum of magnitudes and Euclidean norm, which do not depend on the layout."""
    wide = np.nan_to_num(array.ravel().astype(np.float64), posinf=0.0, neginf=0.0)
    with np.errstate(over="ignore"):
        return float(np.abs(wide).sum()), float(np.sqrt(np.square(wide).sum()))


def _nearest(own: tuple[float, float], others: np.ndarray) -> list[int]:
    """Places of the norms that are near, in order; of many the nearest, since each is compared."""
    with np.errstate(invalid="ignore"):
        apart = np.abs(others - own)
        near = np.flatnonzero((apart <= 2 * _ALIKE * np.maximum(others, own)).all(axis=1))
    nearest = near[np.argsort(apart[near, 0], kind="stable")[:_MOST_LIKE]]
    return sorted(nearest.tolist())


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


def _laid_out(value: np.ndarray) -> tuple[list[tuple[int, ...]], np.ndarray]:
    """The orders of a value's axes, and its probed elements in each."""
    orders, places = list(_orders(value.shape)), _probed(value.size)
    laid_out = [value.transpose(axes) for axes in orders]
    return orders, np.array([each[np.unravel_index(places, each.shape)] for each in laid_out])


def _similar(
    written: np.ndarray, laid_out: Mapping[str, tuple[list[tuple[int, ...]], np.ndarray]]
) -> list[tuple[str, tuple[int, ...]]]:
    """The values, and the orders of their axes, that differ little at the probed elements."""
    pairs = [(name, axes) for name, (orders, _) in laid_out.items() for axes in orders]
    if not pairs:
        return []
    theirs = np.concatenate([probes for _, probes in laid_out.values()])
    ours = written.reshape(-1)[_probed(written.size)]
    if theirs.dtype.kind != "f":
        return list(itertools.compress(pairs, np.mean(ours != theirs, axis=1) <= _UNLIKE))
    ours, theirs = ours.astype(np.float64), theirs.astype(np.float64)
    theirs[~np.isfinite(theirs)] = np.nan
    with warnings.catch_warnings(), np.errstate(invalid="ignore", over="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)  # of nothing but NaN, which stays
        away = np.nanmean(np.abs(np.where(np.isfinite(ours), ours, np.nan) - theirs), axis=1)
        spread = np.nanmean(np.abs(theirs - np.nanmean(theirs, axis=1, keepdims=True)), axis=1)
        spread += _EQUAL * np.nanmean(np.abs(theirs), axis=1)
    return list(itertools.compress(pairs, ~(away > _UNLIKE * spread)))


def _mean_away(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Mean difference over mean distance from the mean; for integers, the share that differs."""
    if theirs.dtype.kind != "f":
        return float(np.mean(ours != theirs))
    finite = np.isfinite(theirs)
    if np.mean(np.isfinite(ours) != finite) > _ALIKE:
        return np.inf
    both = finite & np.isfinite(ours)
    a, b = ours[both].astype(np.float64), theirs[both].astype(np.float64)
    if not a.size:
        return 0.0
    # Elements that are near to each other are near in any order. So their distances say more than
    # their magnitudes: the logits of a text detector are all between -14 and -18.
    spread = float(np.abs(b - b.mean()).mean() + _EQUAL * np.abs(b).mean())
    away = float(np.abs(a - b).mean())
    return away / spread if spread > 0 else float(away > 0)


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
    """Run a library once and copy the output of each kernel; taps are restored."""
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
    """A kernel's output: its last argument."""
    given = arguments[-1] if arguments else None
    return given.numpy() if hasattr(given, "numpy") else None

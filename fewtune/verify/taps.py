"""Compares a library's intermediate values where its kernels write them.

A fault deep inside a network may change its outputs less than rounding does, since biases or a gate
close to zero hide it. So each kernel's own result is compared as well. `fewtune.verify.sites` finds
which of the model's values a kernel writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from fewtune.runtime.executable import Observer
from fewtune.verify.comparison import Difference, Expected, compare, compare_steps
from fewtune.verify.sites import Site, Written

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

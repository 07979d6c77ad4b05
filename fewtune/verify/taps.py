"""Values between a model's operators, compared where a library's kernels write them.

What is wrong deep inside a network may move its outputs less than rounding does: biases drown it,
or a gate close to zero. So each kernel's own result is compared, too. Which of the model's values
a kernel writes is found by content (`fewtune.verify.sites`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from fewtune.runtime.executable import Observer
from fewtune.verify.comparison import Difference, Expected, compare, compare_steps
from fewtune.verify.sites import Site, Written

# Times an output's allowance: nothing drowns these values, and a fault of 1 % is far above it.
ROOM = 4.0


class Runs(Protocol):
    """A library that can be run: `fewtune.runtime.executable.CompiledModel`, or one elsewhere."""

    def outputs(self, inputs: list[np.ndarray]) -> list[np.ndarray]:
        """Run once on ``inputs`` and copy the outputs back."""


@runtime_checkable
class Observable(Protocol):
    """A library whose kernels can be looked at while it runs: one on this machine."""

    def observed(self, inputs: list[np.ndarray], observe: Observer) -> list[np.ndarray]:
        """Run once, and show every kernel's arguments after its call."""


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

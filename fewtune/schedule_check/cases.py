"""Selections that the index on one axis of a block decides: each case is computed where it holds.

The transforms of Winograd's algorithm are chains of selections, one case for each row of a matrix.
If all cases were computed for all indices, each element would be computed six times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fewtune.schedule_check.numbers import Number
from fewtune.schedule_check.reads import Affine


class Places(NamedTuple):
    """Equidistant indices on an axis.

    Attributes
    ----------
    axis : int
    begin, step, number : int
        First index, distance, and number of indices.
    """

    axis: int
    begin: int
    step: int
    number: int

    @property
    def slice(self) -> slice:
        return slice(self.begin, self.begin + self.step * self.number, self.step)


def selection(expression: Any) -> Sequence[Any] | None:
    """Condition and both values of a selection; None for any other expression."""
    kind = type(expression).__name__
    if kind == "Select":
        return expression.condition, expression.true_value, expression.false_value
    if kind == "Call" and str(getattr(expression.op, "name", "")).endswith(".if_then_else"):
        return list(expression.args)
    return None


def by_place(
    expression: Any, evaluate: Callable[[Any], Number], axes: int
) -> list[tuple[Places, Any]] | None:
    """The cases of a chain of selections, each with the indices of one axis where it holds.

    Parameters
    ----------
    expression : PrimExpr
    evaluate : callable
        Computes an expression over the block's axes.
    axes : int
        Number of the block's axes.

    Returns
    -------
    cases : list of (Places, PrimExpr) or None
        None if more than one axis decides, or the indices of a case are not equidistant.
    """
    chosen: Any = None
    along: int | None = None
    values: list[Any] = []
    rest = expression
    while (found := selection(rest)) is not None:
        holds = evaluate(found[0])
        value = np.asarray(holds.value)
        value = value.reshape((1,) * (axes - value.ndim) + value.shape)
        wide = [axis for axis, extent in enumerate(value.shape) if extent > 1]
        if not holds.is_exact or len(wide) != 1 or along not in (None, wide[0]):
            break
        along = wide[0]
        if chosen is None:
            chosen = np.full(value.size, -1)
        chosen[(chosen < 0) & value.ravel().astype(bool)] = len(values)
        values.append(found[1])
        rest = found[2]
    if along is None:
        return None
    chosen[chosen < 0] = len(values)
    cases = []
    for number, value in enumerate([*values, rest]):
        places = np.flatnonzero(chosen == number)
        steps = np.unique(np.diff(places))
        if len(steps) > 1:
            return None
        if len(places):
            step = int(steps[0]) if len(steps) else 1
            cases.append((Places(along, int(places[0]), step, len(places)), value))
    return cases


def joined(made: Sequence[tuple[Places, Number]], extents: Sequence[int]) -> Number:
    """Join the results of all cases, each at its indices."""
    first = made[0][1]
    if len(made) == 1:
        return first
    is_exact = all(each.is_exact for _, each in made)
    error = (
        0.0 if is_exact else _assembled([(p, each.error) for p, each in made], extents, "float32")
    )
    values = [(places, each.value) for places, each in made]
    return Number(
        _assembled(values, extents, np.result_type(*(v for _, v in values))), error, first.dtype
    )


def _assembled(
    parts: Sequence[tuple[Places, Any]], extents: Sequence[int], dtype: np.dtype | str
) -> np.ndarray:
    axis = parts[0][0].axis
    arrays = []
    for places, part in parts:
        part = np.asarray(part)
        arrays.append((places, part.reshape((1,) * (len(extents) - part.ndim) + part.shape)))
    shape = list(np.broadcast_shapes(*(_with_extent_1(part.shape, axis) for _, part in arrays)))
    shape[axis] = extents[axis]
    whole = np.empty(shape, dtype)
    for places, part in arrays:
        whole[(slice(None),) * axis + (places.slice,)] = part
    return whole


def _with_extent_1(shape: Sequence[int], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], 1, *shape[axis + 1 :])


def within(axes: Mapping[Any, Affine], places: Places) -> dict[Any, Affine]:
    """A block's variables, with one axis restricted to some indices."""
    made = {}
    for variable, (factors, added) in axes.items():
        factor = factors.get(places.axis, 0)
        restricted = {**factors, places.axis: factor * places.step} if factor else factors
        made[variable] = restricted, added + factor * places.begin
    return made

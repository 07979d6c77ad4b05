"""Reads buffers at the indices of a block, for all its iterations together.

Every array here has the block's axes, in their order; its extent is 1 along axes on which it does
not depend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm_ffi
from numpy.lib.stride_tricks import as_strided

from fewtune.runtime.tvm import tvm

# Factor of each of a block's axes, and a constant.
Affine = tuple[dict[int, int], int]


def affine(expression: Any, axes: Mapping[Any, Affine], extents: Sequence[int]) -> Affine | None:
    """An index as an affine function of axes; None if it is not affine.

    Parameters
    ----------
    expression : PrimExpr or int
    axes : mapping of Affine
        By variable.
    extents : sequence of int
        Extents of the block's axes.
    """
    kind = type(expression).__name__
    if kind in ("int", "IntImm"):
        return {}, int(expression)
    if kind == "Var":
        return axes.get(expression)
    if kind == "Cast":
        return affine(expression.value, axes, extents)
    if kind not in ("Add", "Sub", "Mul", "FloorDiv", "FloorMod"):
        return None
    left = affine(expression.a, axes, extents)
    right = None if left is None else affine(expression.b, axes, extents)
    if left is None or right is None:
        return None
    if kind in ("FloorDiv", "FloorMod"):
        return _divided(left, right, kind, extents)
    if kind == "Mul":
        if left[0] and right[0]:
            return None
        (factors, added), (_, times) = (left, right) if left[0] else (right, left)
        return {axis: factor * times for axis, factor in factors.items()}, added * times
    sign = 1 if kind == "Add" else -1
    factors = dict(left[0])
    for axis, factor in right[0].items():
        factors[axis] = factors.get(axis, 0) + sign * factor
    return factors, left[1] + sign * right[1]


def _divided(left: Affine, right: Affine, kind: str, extents: Sequence[int]) -> Affine | None:
    """A quotient or a remainder, if terms that the divisor divides are apart from the others."""
    by = right[1]
    if right[0] or by < 1:
        return None
    times, added = divmod(left[1], by)
    rest = {axis: factor for axis, factor in left[0].items() if factor % by}
    least, most = _range((rest, added), extents)
    if least < 0 or most >= by:
        return None
    if kind == "FloorMod":
        return rest, added
    return {axis: factor // by for axis, factor in left[0].items() if axis not in rest}, times


def _range(of: Affine, extents: Sequence[int]) -> tuple[int, int]:
    """The least and the largest value of an affine function."""
    ends = [factor * (extents[axis] - 1) for axis, factor in of[0].items()]
    return of[1] + sum(end for end in ends if end < 0), of[1] + sum(end for end in ends if end > 0)


def radices(body: Any, extents: Mapping[Any, int]) -> dict[Any, list[int]]:
    """How axes are split, so that quotients and remainders of their variables are affine.

    With ``y // 4`` and ``y % 4``, an axis of extent 224 becomes one of 56 and one of 4: what is
    read there is a view, and a condition on ``y % 4`` depends on one axis.

    Parameters
    ----------
    body : Stmt
        Of a block.
    extents : mapping of int
        By variable.

    Returns
    -------
    radices : dict of list of int
        By variable, outermost first.
    """
    units: dict[Any, set[int]] = {variable: {extent} for variable, extent in extents.items()}

    def digit(expression: Any) -> tuple[Any, int] | None:
        """The variable of a digit, and its unit."""
        kind = type(expression).__name__
        if kind == "Var":
            return (expression, 1) if expression in units else None
        if kind not in ("FloorDiv", "FloorMod") or type(expression.b).__name__ != "IntImm":
            return None
        found = digit(expression.a)
        if found is None:
            return None
        variable, unit = found
        units[variable].add(unit * int(expression.b))
        return variable, unit * int(expression.b) if kind == "FloorDiv" else unit

    divisions: list[Any] = []
    kinds = (tvm.tirx.FloorDiv, tvm.tirx.FloorMod)
    tvm_ffi.structural_walk(body, [(kind, divisions.append) for kind in kinds])
    for division in divisions:
        digit(division)
    made = {}
    for variable, found in units.items():
        below, split = 1, []
        for unit in sorted(found):
            if unit > below and unit % below == 0 and extents[variable] % unit == 0:
                split.append(unit // below)
                below = unit
        made[variable] = split[::-1] or [1]
    return made


def read(
    arrays: Sequence[np.ndarray],
    indices: Sequence[Any],
    axes: Mapping[Any, Affine],
    extents: Sequence[int],
    evaluate: Callable[[Any], Any],
) -> list[np.ndarray]:
    """A buffer's elements at every iteration of a block.

    If an index is outside of the buffer, where a condition discards it, the nearest element is
    read.

    Parameters
    ----------
    arrays : sequence of array
        Of the buffer's shape, such as its values and their errors.
    indices : sequence of PrimExpr
        One for each axis of the buffer.
    axes : mapping of Affine
        By variable.
    extents : sequence of int
        Extents of the block's axes.
    evaluate : callable
        Computes an index as an array over the block's axes.
    """
    shape = arrays[0].shape
    sums = [affine(index, axes, extents) for index in indices]
    if _inside(sums, shape, extents):
        return [_strided(array, sums, extents) for array in arrays]  # type: ignore[arg-type]
    places = []
    for index, size in zip(indices, shape, strict=True):
        place = np.asarray(evaluate(index))
        place = place.reshape((1,) * (len(extents) - place.ndim) + place.shape)
        places.append(np.clip(place, 0, size - 1))
    by_axis = [[a for a, n in enumerate(place.shape) if n > 1] for place in places]
    used = [axis for some in by_axis for axis in some]
    is_separate = all(len(some) <= 1 for some in by_axis) and len(used) == len(set(used))
    taken = _taken_by_axes if is_separate else _taken
    return [taken(array, places, by_axis, len(extents)) for array in arrays]


def _inside(sums: Sequence[Affine | None], shape: Sequence[int], extents: Sequence[int]) -> bool:
    for each, size in zip(sums, shape, strict=True):
        if each is None:
            return False
        least, most = _range(each, extents)
        if least < 0 or most >= size:
            return False
    return True


def _strided(array: np.ndarray, sums: Sequence[Affine], extents: Sequence[int]) -> np.ndarray:
    """A strided view: nothing is copied."""
    strides = [0] * len(extents)
    used = set()
    for (factors, _), stride in zip(sums, array.strides, strict=True):
        for axis, factor in factors.items():
            strides[axis] += factor * stride
            if factor:
                used.add(axis)
    start = array[tuple(slice(added, None) for _, added in sums)]
    shape = [extent if axis in used else 1 for axis, extent in enumerate(extents)]
    return as_strided(start, shape, strides, writeable=False)


def _taken_by_axes(
    array: np.ndarray, places: Sequence[np.ndarray], by_axis: Sequence[list[int]], axes: int
) -> np.ndarray:
    """If each index depends on its own axis: take along one axis of the buffer after the other."""
    taken = array
    for dimension, place in enumerate(places):
        flat = place.ravel()
        if len(flat) != taken.shape[dimension] or np.any(flat != np.arange(len(flat))):
            taken = taken.take(flat, axis=dimension)
    order = sorted(range(array.ndim), key=lambda d: by_axis[d][0] if by_axis[d] else -1)
    shape = [1] * axes
    for dimension, some in enumerate(by_axis):
        if some:
            shape[some[0]] = taken.shape[dimension]
    return taken.transpose(order).reshape(shape)


def _taken(
    array: np.ndarray, places: Sequence[np.ndarray], by_axis: Sequence[list[int]], axes: int
) -> np.ndarray:
    """Take element by element, or whole rows if the last index is the innermost axis."""
    last = by_axis[-1]
    others = {axis for some in by_axis[:-1] for axis in some}
    row = array.shape[-1]
    is_row = (
        last == [axes - 1]
        and axes - 1 not in others
        and places[-1].size == row
        and np.array_equal(places[-1].ravel(), np.arange(row))
    )
    count = array.ndim - 1 if is_row else array.ndim
    flat: Any = 0
    for dimension in range(count):
        flat = flat * array.shape[dimension] + places[dimension]
    if not is_row:
        return array.reshape(-1).take(flat)
    flat = np.asarray(flat).reshape(np.shape(flat) or (1,) * axes)
    return array.reshape(-1, row).take(flat[..., 0], axis=0)

"""Reads buffers at the indices of a block, for all its iterations together.

Every array here has the block's axes, in their order; its extent is 1 along axes on which it does
not depend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided


class Axis(NamedTuple):
    """An axis of a block, or equidistant indices on it.

    Attributes
    ----------
    place : int
        Number of the axis in the block.
    begin, step : int
        The axis's variable is ``begin + step * number``.
    """

    place: int
    begin: int = 0
    step: int = 1


# Factor of each axis, and a constant.
Affine = tuple[dict[int, int], int]


def affine(expression: Any, axes: Mapping[Any, Axis]) -> Affine | None:
    """An index as an affine function of axes; None if it is not affine.

    Parameters
    ----------
    expression : PrimExpr or int
    axes : mapping of Axis
        By variable.
    """
    kind = type(expression).__name__
    if kind in ("int", "IntImm"):
        return {}, int(expression)
    if kind == "Cast":
        return affine(expression.value, axes)
    if kind in ("Add", "Sub"):
        left, right = affine(expression.a, axes), affine(expression.b, axes)
        if left is None or right is None:
            return None
        sign = 1 if kind == "Add" else -1
        factors = dict(left[0])
        for axis, factor in right[0].items():
            factors[axis] = factors.get(axis, 0) + sign * factor
        return factors, left[1] + sign * right[1]
    if kind == "Mul":
        left, right = affine(expression.a, axes), affine(expression.b, axes)
        if left is None or right is None or (left[0] and right[0]):
            return None
        (factors, added), (_, times) = (left, right) if left[0] else (right, left)
        return {axis: factor * times for axis, factor in factors.items()}, added * times
    if kind == "Var" and expression in axes:
        found = axes[expression]
        return {found.place: found.step}, found.begin
    return None


def read(
    array: np.ndarray,
    indices: Sequence[Any],
    axes: Mapping[Any, Axis],
    extents: Sequence[int],
    evaluate: Callable[[Any], Any],
) -> np.ndarray:
    """A buffer's elements at every iteration of a block.

    If an index is outside of the buffer, where a condition discards it, the nearest element is
    read.

    Parameters
    ----------
    array : array
        The buffer.
    indices : sequence of PrimExpr
        One for each axis of the buffer.
    axes : mapping of Axis
        By variable.
    extents : sequence of int
        Extents of the block's axes.
    evaluate : callable
        Computes an index as an array over the block's axes.
    """
    sums = [affine(index, axes) for index in indices]
    if all(each is not None for each in sums) and _inside(sums, array.shape, extents):  # type: ignore[arg-type]
        return _strided(array, sums, extents)  # type: ignore[arg-type]
    places = []
    for index, size in zip(indices, array.shape, strict=True):
        place = np.asarray(evaluate(index))
        place = place.reshape((1,) * (len(extents) - place.ndim) + place.shape)
        places.append(np.clip(place, 0, size - 1))
    by_axis = [[a for a, n in enumerate(place.shape) if n > 1] for place in places]
    used = [axis for some in by_axis for axis in some]
    if all(len(some) <= 1 for some in by_axis) and len(used) == len(set(used)):
        return _taken_by_axes(array, places, by_axis, len(extents))
    return _taken(array, places, by_axis, len(extents))


def _inside(sums: Sequence[Affine], shape: Sequence[int], extents: Sequence[int]) -> bool:
    for (factors, added), size in zip(sums, shape, strict=True):
        ends = [factor * (extents[axis] - 1) for axis, factor in factors.items()]
        least = added + sum(end for end in ends if end < 0)
        most = added + sum(end for end in ends if end > 0)
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

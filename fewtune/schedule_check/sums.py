"""Reductions over a block's axes, with bounds for other orders of summation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product as each_of
from math import prod, sqrt
from typing import Any

import numpy as np

from fewtune.schedule_check.numbers import ROUNDING, SUM, Number, UnknownError

# Reductions of up to this length are computed step by step, each step for all elements together.
_MOST_STEPS = 160
# Most elements of an operand that is copied.
_MOST_ELEMENTS = 2**27
# Elements that are copied at once for a product.
_PART = 2**20

# Products of bytes whose sum is exact in float32.
_EXACT_BYTES = 2**24 // (255 * 128) // 4 * 4

_COMBINE = {"max": np.maximum, "min": np.minimum}


def whole(array: Any, extents: Sequence[int]) -> np.ndarray:
    """An array with one axis for each axis of a block."""
    array = np.asarray(array)
    return array.reshape((1,) * (len(extents) - array.ndim) + array.shape)


def extreme(x: Number, kind: str, reduced: Sequence[int], extents: Sequence[int]) -> Number:
    """The maximum or minimum along some axes, which stay with extent 1."""
    value = _reduced(whole(x.value, extents), _COMBINE[kind], reduced)
    error = x.error
    if not isinstance(error, float):
        error = _reduced(whole(error, extents), np.maximum, reduced)
    return Number(value, error, x.dtype)


def summed(x: Number, reduced: Sequence[int], extents: Sequence[int]) -> Number:
    """The sum along some axes, which stay with extent 1."""
    length = prod(extents[axis] for axis in reduced)
    value = _times(_added(whole(x.value, extents), reduced), x.value, reduced, extents)
    if x.dtype not in ROUNDING:
        if not x.is_exact:
            return Number(value, _sum_of_errors(x.error, reduced, extents, length), x.dtype)
        return Number(value, 0.0, x.dtype)
    squares = _squares(whole(x.value, extents), reduced)
    squares = _times(squares, x.value, reduced, extents)
    error = _of_order(x.dtype, value, np.sqrt(length * squares), length)
    return Number(value, error + _sum_of_errors(x.error, reduced, extents, length), x.dtype)


def _sum_of_errors(error: Any, reduced: Sequence[int], extents: Sequence[int], length: int) -> Any:
    if isinstance(error, float):
        return error * length
    return _times(_added(whole(error, extents), reduced), error, reduced, extents)


def _of_order(dtype: str, value: Any, absolute: Any, length: int) -> Any:
    """Bound of the difference between two orders of summation.

    Each partial sum is rounded once. Partial sums of values of either sign are a random walk; those
    of one sign grow.
    """
    moved = np.abs(value)
    moved *= np.float32(sqrt(length))
    moved += absolute
    moved *= np.float32(SUM * ROUNDING[dtype])
    return moved


def products(a: Number, b: Number, reduced: Sequence[int], extents: Sequence[int]) -> Number:
    """The sum of products along some axes, which stay with extent 1.

    Raises
    ------
    UnknownError
        If the operands do not suit a product, or it would take too much memory.
    """
    length = prod(extents[axis] for axis in reduced)
    x, y = whole(a.value, extents), whole(b.value, extents)
    if any((x.shape[axis] > 1) != (y.shape[axis] > 1) for axis in reduced):
        raise UnknownError("a sum along an axis of one factor")
    if a.dtype not in ROUNDING:
        if not (a.is_exact and b.is_exact):
            raise UnknownError("a product of integers that were rounded")
        # NumPy has no fast product of integers; float64 holds them exactly up to 2**53.
        value, _ = _contracted(x.astype("float64"), y.astype("float64"), reduced)
        return Number(np.rint(value).astype(a.dtype), 0.0, a.dtype)
    value, norms = _contracted(x, y, reduced, with_norms=True)
    error = _of_order(a.dtype, value, norms, length)
    for other, factor in ((a, y), (b, x)):
        if not other.is_exact:
            norm = np.sqrt(_squares(factor, reduced))
            error = error + _norm(other.error, reduced, extents, length) * norm
    return Number(value, error, a.dtype)


def word_products(a: Number, b: Number, reduced: Sequence[int], extents: Sequence[int]) -> Number:
    """The sum of dot products of words along some axes, which stay with extent 1.

    Parameters
    ----------
    a, b : Number
        int32; each word holds four unsigned bytes, and four signed ones
        (`fewtune.runtime.dot_products`).
    reduced, extents : sequence of int

    Raises
    ------
    UnknownError
        If it would take too much memory.
    """
    if not (a.is_exact and b.is_exact):
        raise UnknownError("bytes of words that were rounded")
    x, y = (
        np.ascontiguousarray(whole(each.value, extents))[..., None].view(kind)
        for each, kind in ((a, "uint8"), (b, "int8"))
    )
    value, _ = _contracted(x, y, [*reduced, len(extents)], product=_product_of_bytes)
    return Number(value[..., 0], 0.0, a.dtype)


def _product_of_bytes(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Matrix product of bytes in float32, which is faster and exact for these lengths."""
    total = np.zeros((*left.shape[:-1], right.shape[-1]), "int32")
    for begin in range(0, left.shape[-1], _EXACT_BYTES):
        part = slice(begin, begin + _EXACT_BYTES)
        made = left[..., part].astype("float32") @ right[:, part].astype("float32")
        total += made.astype("int32")
    return total


def _norm(error: Any, reduced: Sequence[int], extents: Sequence[int], length: int) -> Any:
    if isinstance(error, float):
        return error * sqrt(length)
    error = whole(error, extents)
    missing = prod(extents[axis] for axis in reduced if error.shape[axis] == 1)
    return np.sqrt(missing * _squares(error, reduced))


def _contracted(
    x: np.ndarray,
    y: np.ndarray,
    reduced: Sequence[int],
    *,
    with_norms: bool = False,
    product: Callable[[np.ndarray, np.ndarray], np.ndarray] = np.matmul,
) -> tuple[np.ndarray, Any]:
    """Sum of ``x * y`` along axes that both have, and the product of their norms along these.

    Norms are computed from the copied matrices of the product. A convolution's data is a view that
    repeats most elements: it is copied only once.
    """
    dimensions = range(x.ndim)
    free = [axis for axis in dimensions if axis not in reduced]
    both = [axis for axis in free if x.shape[axis] > 1 and y.shape[axis] > 1]
    only_x = [axis for axis in free if x.shape[axis] > 1 and y.shape[axis] == 1]
    only_y = [axis for axis in free if x.shape[axis] == 1 and y.shape[axis] > 1]
    neither = [axis for axis in free if axis not in {*both, *only_x, *only_y}]
    along = [axis for axis in reduced if x.shape[axis] > 1]
    length = prod(x.shape[axis] for axis in along)
    is_plain = product is np.matmul
    if is_plain and both and not (only_x and only_y) and length <= _MOST_STEPS:
        norms = np.sqrt(_squares(x, reduced)) * np.sqrt(_squares(y, reduced)) if with_norms else 0
        return _stepwise(x, y, along), norms
    if max(x.size, y.size) > _MOST_ELEMENTS:
        raise UnknownError("a product of too many elements")
    rows, columns = [prod(x.shape[a] for a in only_x), prod(y.shape[a] for a in only_y)]
    batch = prod(x.shape[a] for a in both)
    rest = [axis for axis in reduced if axis not in along]
    left = x.transpose([*both, *only_x, *along, *only_y, *neither, *rest])
    left = left.reshape(batch, rows, length)
    right = y.transpose([*both, *along, *only_y, *only_x, *neither, *rest])
    right = right.reshape(batch, length, columns)
    order = [*both, *only_x, *only_y]
    shape = [max(x.shape[a], y.shape[a]) for a in order] + [1] * len([*neither, *reduced])
    back = np.argsort([*order, *neither, *reduced])
    if is_plain and not (_is_packed(left) and _is_packed(right)):
        product = _by_parts
    value = product(left, right).reshape(shape).transpose(back)
    if not with_norms:
        return value, 0
    norms = np.sqrt(np.einsum("bik,bik->bi", left, left))[:, :, None]
    norms = norms * np.sqrt(np.einsum("bkj,bkj->bj", right, right))[:, None, :]
    return value, norms.reshape(shape).transpose(back)


def _is_packed(matrices: np.ndarray) -> bool:
    """Whether BLAS takes matrices as they are: large arguments overlap themselves."""
    rows, columns = matrices.strides[-2:]
    size = matrices.itemsize
    return (columns == size and rows >= matrices.shape[-1] * size) or (
        rows == size and columns >= matrices.shape[-2] * size
    )


def _by_parts(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Matrix product of what BLAS does not take: a part of the sum at a time is copied."""
    length = left.shape[-1]
    step = max(1, _PART // max(left[..., 0].size, right[:, 0].size))
    total: Any = None
    for begin in range(0, length, step):
        part = slice(begin, begin + step)
        made = np.ascontiguousarray(left[..., part]) @ np.ascontiguousarray(right[:, part])
        total = made if total is None else np.add(total, made, out=total)
    return total


def _steps(shape: Sequence[int], axes: Sequence[int]) -> Iterator[tuple[slice, ...]]:
    for point in each_of(*(range(shape[axis]) for axis in axes)):
        index = [slice(None)] * len(shape)
        for axis, place in zip(axes, point, strict=True):
            index[axis] = slice(place, place + 1)
        yield tuple(index)


def _stepwise(x: np.ndarray, y: np.ndarray, along: Sequence[int]) -> np.ndarray:
    total: Any = None
    for index in _steps(x.shape, along):
        made = x[index] * y[index]
        total = made if total is None else np.add(total, made, out=total)
    return total


def _reduced(
    x: np.ndarray, combine: Callable[[Any, Any], Any], reduced: Sequence[int]
) -> np.ndarray:
    along = [axis for axis in reduced if x.shape[axis] > 1]
    if not along:
        return x
    if prod(x.shape[axis] for axis in along) > _MOST_STEPS:
        return combine.reduce(x, axis=tuple(along), keepdims=True)  # type: ignore[attr-defined]
    total: Any = None
    for index in _steps(x.shape, along):
        total = x[index] if total is None else combine(total, x[index])
    return total


def _added(x: np.ndarray, reduced: Sequence[int]) -> np.ndarray:
    return _reduced(x, np.add, reduced).astype(x.dtype, copy=False)


def _squares(x: np.ndarray, reduced: Sequence[int]) -> np.ndarray:
    """Sum of squares along those of the axes whose extent is above 1."""
    along = tuple(axis for axis in reduced if x.shape[axis] > 1)
    if not along:
        return x * x
    if prod(x.shape[axis] for axis in along) <= _MOST_STEPS:
        return _stepwise(x, x, along)
    # By row: the squares are not stored.
    order = [axis for axis in range(x.ndim) if axis not in along]
    rows = x.transpose([*order, *along]).reshape(*[x.shape[a] for a in order], -1)
    made = np.einsum("...k,...k->...", rows, rows)
    return np.expand_dims(made, along)


def _times(made: Any, given: Any, reduced: Sequence[int], extents: Sequence[int]) -> Any:
    """Multiply a sum by the extents of axes along which the summed array is constant."""
    shape = whole(given, extents).shape
    missing = prod(extents[axis] for axis in reduced if shape[axis] == 1)
    return made if missing == 1 else made * made.dtype.type(missing)

"""Values with error bounds: the arithmetic of the interpreter.

Every value has a bound on how far a right kernel may be from it. That kernel may use another order
of summation, a fused multiply-add, or another polynomial for an exponential. The bound of a result
follows from its operands, element by element.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

# Half a unit in the last place, relative. Types that are not here are exact.
ROUNDING = {"float16": 2.0**-11, "float32": 2.0**-24, "float64": 2.0**-53}
# Difference of two orders of summation, in standard deviations of the rounding of one.
SUM = 8.0
# Values of arrays up to this size are tested for being integers.
_FEW = 64


class UnknownError(Exception):
    """The interpreter does not support a part of a kernel, which is compiled instead."""


class Number(NamedTuple):
    """Values and their error bounds: arrays that broadcast against each other.

    Attributes
    ----------
    value : array
        Float16 is held in float32.
    error : array or float
        In the unit of the values; for a condition, 1 where it may be true or false.
    dtype : str
        TVM's name of the type.
    is_whole : bool
        Whether all values are integers, in any dtype: their sums are exact.
    """

    value: Any
    error: Any
    dtype: str
    is_whole: bool = False

    @property
    def is_exact(self) -> bool:
        return isinstance(self.error, float) and self.error == 0


def held(dtype: str) -> np.dtype:
    """NumPy's dtype of the array that holds values of a TVM dtype.

    Raises
    ------
    UnknownError
        If NumPy has no such dtype.
    """
    if dtype == "float16":
        return np.dtype("float32")
    try:
        return np.dtype(dtype)
    except TypeError:
        raise UnknownError(dtype) from None


def rounded(value: Any, error: Any, dtype: str) -> Number:
    """The result of one operation, with the error of its own rounding added."""
    if dtype not in ROUNDING:
        return Number(value, error, dtype)
    # In place: another large array would double the time.
    moved = np.abs(value)
    moved *= np.float32(ROUNDING[dtype])
    if isinstance(error, float) and error == 0:
        return Number(value, moved, dtype)
    if np.shape(moved) == np.broadcast_shapes(np.shape(moved), np.shape(error)):
        moved += error
    else:
        moved = moved + error
    return Number(value, moved, dtype)


def constant(value: Any, dtype: str) -> Number:
    """An exact constant."""
    return Number(held(dtype).type(value), 0.0, dtype)


def add(a: Number, b: Number) -> Number:
    """The sum."""
    return _sum(a, b, a.value + b.value)


def subtract(a: Number, b: Number) -> Number:
    """The difference."""
    return _sum(a, b, a.value - b.value)


def _sum(a: Number, b: Number, value: Any) -> Number:
    are_whole = a.dtype in ROUNDING and a.is_whole and _are_whole(b)
    # Below this, every integer is a float.
    if are_whole and float(np.max(np.abs(value), initial=0)) < 1 / ROUNDING[a.dtype]:
        return Number(value, _added(a, b), a.dtype, is_whole=True)
    return rounded(value, _added(a, b), a.dtype)


def _added(a: Number, b: Number) -> Any:
    # One of them is often exact: nothing is added to a large array.
    return a.error if b.is_exact else b.error if a.is_exact else a.error + b.error


def _are_whole(a: Number) -> bool:
    """Whether values are integers; only small arrays, such as a zero point, are tested."""
    if a.is_whole or not a.is_exact or np.size(a.value) > _FEW:
        return a.is_whole
    return bool(np.all(np.rint(a.value) == a.value))


def multiply(a: Number, b: Number) -> Number:
    """The product."""
    error: Any = 0.0
    if not (a.is_exact or b.is_exact):
        error = np.abs(b.value) * a.error + (np.abs(a.value) + a.error) * b.error
    elif not a.is_exact:
        error = np.abs(b.value) * a.error
    elif not b.is_exact:
        error = np.abs(a.value) * b.error
    return rounded(a.value * b.value, error, a.dtype)


def divide(a: Number, b: Number) -> Number:
    """The quotient; integers are divided towards zero."""
    if a.dtype not in ROUNDING:
        return _integers(a, b, lambda x, y: np.trunc(x / y).astype(x.dtype))
    value = a.value / b.value
    error: Any = 0.0
    if not (a.is_exact and b.is_exact):
        room = np.abs(b.value) - b.error
        error = (a.error + np.abs(value) * b.error) / np.maximum(room, 0)
        error = np.where(room > 0, error, np.inf)
    return rounded(value, error, a.dtype)


def floor_divide(a: Number, b: Number) -> Number:
    """The quotient of integers, rounded down."""
    return _integers(a, b, lambda x, y: x // y)


def floor_modulo(a: Number, b: Number) -> Number:
    """The remainder of `floor_divide`."""
    return _integers(a, b, lambda x, y: x % y)


def truncated_modulo(a: Number, b: Number) -> Number:
    """The remainder of a division towards zero."""
    return _integers(a, b, np.fmod)


def bits(operation: Callable[[Any, Any], Any]) -> Callable[[Number, Number], Number]:
    """An operation on the bits of integers."""

    def operated(a: Number, b: Number) -> Number:
        _only_integers(a, b)
        return Number(operation(a.value, b.value), 0.0, a.dtype)

    return operated


def reinterpreted(a: Number, dtype: str) -> Number:
    """The bits of values as values of another dtype."""
    kind, value = held(dtype), np.asarray(a.value)
    if not a.is_exact or value.dtype.itemsize != kind.itemsize or "float16" in (a.dtype, dtype):
        raise UnknownError("the bits of a rounded number, or of another size")
    # A view needs contiguous elements.
    return Number(np.ascontiguousarray(value).view(kind).reshape(value.shape), 0.0, dtype)


def _only_integers(a: Number, b: Number) -> None:
    if a.dtype in ROUNDING or not (a.is_exact and b.is_exact):
        raise UnknownError("an operation of integers on rounded numbers")


def _integers(a: Number, b: Number, operation: Callable[[Any, Any], Any]) -> Number:
    _only_integers(a, b)
    b_value = b.value
    if np.any(b_value == 0):
        # Only where a condition discards the result.
        b_value = np.where(b_value == 0, 1, b_value)
    return Number(operation(a.value, b_value), 0.0, a.dtype)


def largest(a: Number, b: Number) -> Number:
    """The larger of two."""
    is_whole = a.is_whole and _are_whole(b)
    return Number(np.maximum(a.value, b.value), _larger(a, b), a.dtype, is_whole)


def least(a: Number, b: Number) -> Number:
    """The smaller of two."""
    is_whole = a.is_whole and _are_whole(b)
    return Number(np.minimum(a.value, b.value), _larger(a, b), a.dtype, is_whole)


def _larger(a: Number, b: Number) -> Any:
    if a.is_exact or b.is_exact:
        return _added(a, b)
    return np.maximum(a.error, b.error)


def compared(operation: Callable[[Any, Any], Any]) -> Callable[[Number, Number], Number]:
    """A comparison; it may be true or false where the sides differ by less than their errors."""

    def compare(a: Number, b: Number) -> Number:
        value = operation(a.value, b.value)
        if a.is_exact and b.is_exact:
            return Number(value, 0.0, "bool")
        near = np.abs(a.value - b.value) <= a.error + b.error
        return Number(value, near.astype("float32"), "bool")

    return compare


def logical(operation: Callable[[Any, Any], Any]) -> Callable[[Number, Number], Number]:
    """A logical operation."""
    return lambda a, b: Number(operation(a.value, b.value), _larger(a, b), "bool")


def select(condition: Number, yes: Number, no: Number) -> Number:
    """One of two values, by a condition."""
    value = np.where(condition.value, yes.value, no.value)
    error: Any = 0.0
    if not (yes.is_exact and no.is_exact):
        error = np.where(condition.value, yes.error, no.error).astype("float32")
    if not condition.is_exact:
        either = np.maximum(yes.error, no.error) + np.abs(yes.value - no.value)
        error = np.where(condition.error > 0, either, error).astype("float32")
    return Number(value, error, yes.dtype)


def cast(a: Number, dtype: str) -> Number:
    """Values converted to another dtype."""
    kind = held(dtype)
    if a.dtype in ROUNDING and dtype not in ROUNDING and dtype != "bool":
        limits = np.iinfo(kind)
        if kind.itemsize <= 2:
            # A value that rounding moves beyond the range must not wrap around.
            return monotone(
                lambda x: np.clip(np.trunc(x), limits.min, limits.max).astype(kind), a, dtype
            )
        return monotone(lambda x: np.trunc(x).astype(kind), a, dtype)
    error: Any = a.error
    if not a.is_exact:
        error = np.asarray(error, "float32")
    value = np.asarray(a.value).astype(kind, copy=False)
    narrows = dtype in ROUNDING and ROUNDING.get(a.dtype, 0.0) < ROUNDING[dtype]
    # A large integer may be rounded as well.
    is_wide = a.dtype not in ROUNDING and a.dtype not in ("bool", "int8", "uint8")
    narrows = narrows or (dtype in ROUNDING and is_wide)
    # Every byte is an exact integer in any float type.
    is_whole = a.is_whole or a.dtype in ("int8", "uint8")
    return rounded(value, error, dtype) if narrows else Number(value, error, dtype, is_whole)


def monotone(function: Callable[[Any], Any], a: Number, dtype: str) -> Number:
    """A monotone function: its values at both ends of the error bound its result's error."""
    value = function(a.value)
    if a.is_exact:
        return Number(value, 0.0, dtype)
    up, down = function(a.value + a.error), function(a.value - a.error)
    wide = np.asarray(value, "float64") if held(dtype).kind in "iu" else value
    error = np.maximum(np.abs(up - wide), np.abs(down - wide))
    return Number(value, np.where(np.isnan(error), np.inf, error).astype("float32"), dtype)

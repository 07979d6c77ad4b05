"""Operators and functions of TensorIR, by name, on values with error bounds."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from fewtune.schedule_check import numbers
from fewtune.schedule_check.numbers import ROUNDING, Number, UnknownError, held, monotone

BINARY: dict[str, Callable[[Number, Number], Number]] = {
    "Add": numbers.add,
    "Sub": numbers.subtract,
    "Mul": numbers.multiply,
    "Div": numbers.divide,
    "FloorDiv": numbers.floor_divide,
    "FloorMod": numbers.floor_modulo,
    "Mod": numbers.truncated_modulo,
    "Max": numbers.largest,
    "Min": numbers.least,
    "EQ": numbers.compared(operator.eq),
    "NE": numbers.compared(operator.ne),
    "LT": numbers.compared(operator.lt),
    "LE": numbers.compared(operator.le),
    "GT": numbers.compared(operator.gt),
    "GE": numbers.compared(operator.ge),
    "And": numbers.logical(np.logical_and),
    "Or": numbers.logical(np.logical_or),
}
_AND, _OR, _XOR, _LEFT, _RIGHT = (
    numbers.bits(each)
    for each in (operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift)
)
# TensorIR has nodes for these; older scripts have calls.
BINARY |= {
    "BitwiseAnd": _AND,
    "BitwiseOr": _OR,
    "BitwiseXor": _XOR,
    "LShift": _LEFT,
    "RShift": _RIGHT,
}
BITS = {
    "bitwise_and": _AND,
    "bitwise_or": _OR,
    "bitwise_xor": _XOR,
    "shift_left": _LEFT,
    "shift_right": _RIGHT,
}

# Vectorised exponentials and the like are polynomials, which are off by a few units.
_FUNCTION = 64.0
# Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26: within 1.5e-7.
_ERF = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592, 0.0)


def _erf(x: Any) -> Any:
    size = np.abs(x)
    rest = np.polyval(_ERF, 1 / (1 + 0.3275911 * size)) * np.exp(-size * size)
    return np.sign(x) * (1 - rest)


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


# Monotone functions; results of the exact ones are integers and are not rounded.
_EXACT: dict[str, Callable[[Any], Any]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round": lambda x: np.trunc(x + np.copysign(np.float32(0.5), x)),
    "nearbyint": np.rint,
}
_RISING: dict[str, Callable[[Any], Any]] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "exp10": lambda x: np.power(x.dtype.type(10), x),
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": _sigmoid,
    "tanh": np.tanh,
    "erf": _erf,
    "atan": np.arctan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "sinh": np.sinh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
}
_SLOW = {"sin": np.sin, "cos": np.cos}


def call(name: str, arguments: list[Number]) -> Number:
    """Call a mathematical function by name.

    Raises
    ------
    UnknownError
        If the function is not known.
    """
    a = arguments[0]
    if name == "fabs":
        return Number(np.abs(a.value), a.error, a.dtype)
    if name == "isnan":
        return Number(np.isnan(a.value), 0.0, "bool")
    if a.dtype not in ROUNDING:
        raise UnknownError(name)
    if name in _EXACT:
        return monotone(_EXACT[name], a, a.dtype)._replace(is_whole=True)
    unit = np.float32(_FUNCTION * ROUNDING[a.dtype])
    if name in _RISING:
        made = monotone(_RISING[name], a, a.dtype)
    elif name in _SLOW:
        made = Number(_SLOW[name](a.value), a.error, a.dtype)
    elif name == "pow":
        made = _power(a, arguments[1])
    else:
        raise UnknownError(name)
    # Near a zero of the function, the rounding of its argument counts.
    error = made.error + unit * np.minimum(1, np.abs(a.value)) + unit * np.abs(made.value)
    return Number(made.value.astype(held(a.dtype), copy=False), error, a.dtype)


def _power(a: Number, b: Number) -> Number:
    value = np.power(a.value, b.value)
    if a.is_exact and b.is_exact:
        return Number(value, 0.0, a.dtype)
    moved = [
        np.abs(np.power(a.value + s * a.error, b.value + t * b.error) - value)
        for s in (-1, 1)
        for t in (-1, 1)
    ]
    error = np.maximum.reduce(np.broadcast_arrays(*moved))
    return Number(value, np.where(np.isnan(error), np.inf, error), a.dtype)

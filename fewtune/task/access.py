"""Memory access of a block: the stride of each axis in each tensor that it reads or writes.

TensorIR holds indices as expressions. A default schedule needs numbers: is an axis contiguous in a
tensor, and for how many elements? So numpy computes the flat address along one axis at a time, with
the other axes at zero. The differences are the strides.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
import tvm_ffi

_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "FloorDiv": operator.floordiv,
    "FloorMod": operator.mod,
    "Min": np.minimum,
    "Max": np.maximum,
}
# Longer axes are sampled up to here: strides that hold so far hold within any tile.
_MOST_POINTS = 1 << 15
# Neighbouring elements that one instruction reads: four bytes.
_WORD = [4]


class NotAffineError(Exception):
    """An index that is not arithmetic on loop variables, such as a value read from a tensor."""


class Walk(NamedTuple):
    """How the address in a tensor changes along one axis of a block.

    Attributes
    ----------
    stride : int
        Elements from one step to the next.
    run : int
        Steps from the start of the axis for which the stride holds; the extent if it always does.
    """

    stride: int
    run: int


def nodes_of(statement: Any, kind: type) -> list[Any]:
    """The nodes of a kind in a statement or an expression, inner ones first."""
    found: list[Any] = []
    tvm_ffi.structural_walk(statement, [(kind, found.append)], order="post")
    return found


def evaluate(expression: Any, values: dict[Any, Any]) -> Any:
    """The value of an index expression.

    Parameters
    ----------
    expression : PrimExpr or int
    values : dict
        Numbers or numpy arrays, by variable.

    Raises
    ------
    NotAffineError
        If the expression reads a tensor or calls a function.
    """
    if isinstance(expression, int):
        return expression
    kind = type(expression).__name__
    if kind == "IntImm":
        return int(expression)
    if kind in _BINARY:
        left, right = evaluate(expression.a, values), evaluate(expression.b, values)
        if kind in ("FloorDiv", "FloorMod") and not np.all(right):
            raise NotAffineError("division by zero")
        return _BINARY[kind](left, right)
    if kind == "Cast":
        return evaluate(expression.value, values)
    if expression in values:
        return values[expression]
    raise NotAffineError(kind)


def shape_of(tensor: Any) -> list[int]:
    """The extents of a tensor.

    Raises
    ------
    NotAffineError
        If one is not constant.
    """
    return [int(evaluate(extent, {})) for extent in tensor.shape]


def bytes_of(tensor: Any) -> int:
    """The size of a tensor; raises as `shape_of`."""
    return prod(shape_of(tensor)) * -(-tvm_ffi.dtype(str(tensor.dtype)).bits // 8)


def walks(region: Any, variables: list[Any], extents: list[int]) -> list[Walk] | None:
    """How the address in one region changes along each axis of a block.

    Parameters
    ----------
    region : tvm.ir.TensorRegion
        An entry of ``block.reads`` or ``block.writes``.
    variables, extents : list
        The block's axes, outermost first.

    Returns
    -------
    walks : list of Walk, or None
        One for each axis. None unless the region is a single element or a word
        (`fewtune.runtime.dot_products`) with affine indices. The address of a word is that of its
        first element.
    """
    try:
        shape = shape_of(region.source)
        sizes = [int(evaluate(axis.extent, {})) for axis in region.region]
        if any(size != 1 for size in sizes[:-1]) or sizes[-1:] not in ([], [1], _WORD):
            return None
        found = []
        for position, extent in enumerate(extents):
            steps = np.arange(min(extent, _MOST_POINTS))
            values: dict[Any, Any] = dict.fromkeys(variables, 0)
            values[variables[position]] = steps
            address: Any = 0
            for axis, size in zip(region.region, shape, strict=True):
                address = address * size + evaluate(axis.min, values)
            strides = np.diff(np.broadcast_to(address, steps.shape))
            stride = int(strides[0]) if extent > 1 else 0
            breaks = np.flatnonzero(strides != stride)
            found.append(Walk(stride, int(breaks[0]) + 1 if len(breaks) else max(extent, 1)))
    except NotAffineError:
        return None
    return found


def touched_elements(walk: list[Walk], iterations: Sequence[np.ndarray]) -> np.ndarray:
    """The number of distinct elements of a tensor that a block touches; windows may overlap.

    Parameters
    ----------
    walk : list of Walk
    iterations : sequence of numpy.ndarray
        By axis: iterations, one number for each case.
    """
    touched = span = np.ones_like(iterations[0], dtype=float)
    order = sorted(range(len(walk)), key=lambda axis: abs(walk[axis].stride))
    for axis in order:
        stride, steps = abs(walk[axis].stride), iterations[axis] - 1
        if stride:
            touched = touched * (1 + steps * np.minimum(1.0, stride / span))
            # The span includes the gaps between steps.
            span = np.maximum(span, stride) + stride * steps
    return touched

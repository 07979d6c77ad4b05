"""Removes permutations of axes after the layout conversion: redundant ones, and of constants.

The conversion adds permutations around operators, and rewrites those of the model. Some of them
undo the one before, or keep the order of the axes. Each would copy a whole tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fewtune.runtime.tvm import relax, tvm

dpl = relax.dpl
_PERMUTE = tvm.ir.Op.get("relax.permute_dims")
# Types that NumPy has too.
_IN_NUMPY = frozenset(
    {"float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool"}
)


def without_redundant_permutes(module: tvm.IRModule) -> tvm.IRModule:
    """A Relax module without permutations that keep the order of axes, or undo the one before."""
    given = dpl.wildcard()
    inner = dpl.is_op("relax.permute_dims")(given)
    outer = dpl.is_op("relax.permute_dims")(inner)

    def alone(call: relax.Call, found: dict[Any, Any]) -> relax.Expr:
        return found[given] if _is_identity(_order(call)) else call

    def paired(call: relax.Call, found: dict[Any, Any]) -> relax.Expr:
        first, second = (_order(found[each]) for each in (inner, outer))
        return found[given] if _is_identity([first[axis] for axis in second]) else call

    return _rewritten(_rewritten(module, outer, paired), inner, alone)


def with_moved_constants(module: tvm.IRModule) -> tvm.IRModule:
    """A Relax module in which constants have the order and shape that they would be brought into.

    ``FoldConstant`` does the same, but builds and loads a kernel for each of them.
    """
    constant = dpl.is_const()
    # One pattern: after another `rewrite_call`, TVM 0.27 has what the first one replaced again.
    permuted = dpl.is_op("relax.permute_dims")(constant)
    either = permuted | dpl.is_op("relax.reshape")(constant, dpl.wildcard())

    def moved(call: relax.Call, found: dict[Any, Any]) -> relax.Expr:
        given, extents = found[constant].value, list(call.ty.shape or [])
        is_static = all(isinstance(extent, tvm.tirx.IntImm) for extent in extents)
        if given.dtype not in _IN_NUMPY or not is_static or not all(given.shape):
            return call
        array = given.numpy()
        if call.op.same_as(_PERMUTE):
            array = array.transpose(_order(call))
        array = array.reshape([int(extent) for extent in extents])
        return relax.const(np.ascontiguousarray(array), given.dtype)

    return _rewritten(module, either, moved)


def _rewritten(module: tvm.IRModule, pattern: Any, made: Callable[..., Any]) -> tvm.IRModule:
    functions = {
        variable: dpl.rewrite_call(pattern, made, each)
        if isinstance(each, relax.Function)
        else each
        for variable, each in module.functions_items()
    }
    return tvm.IRModule(functions, attrs=module.attrs)


def _is_identity(order: list[int]) -> bool:
    return order == list(range(len(order)))


def _order(call: relax.Call) -> list[int]:
    axes = call.attrs.axes
    rank = call.args[0].ty.ndim
    return list(reversed(range(rank))) if axes is None else [int(axis) % rank for axis in axes]

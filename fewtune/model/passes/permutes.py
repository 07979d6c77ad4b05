"""Removes redundant permutations of axes after the layout conversion.

The conversion adds permutations around operators, and rewrites those of the model. Some of them
undo the one before, or keep the order of the axes. Each would copy a whole tensor.
"""

from __future__ import annotations

from typing import Any

from fewtune.runtime.tvm import relax, tvm


def without_redundant_permutes(module: tvm.IRModule) -> tvm.IRModule:
    """A Relax module without permutations that keep the order of axes, or undo the one before."""
    from tvm.relax.dpl import is_op, rewrite_call, wildcard

    given = wildcard()
    inner = is_op("relax.permute_dims")(given)
    outer = is_op("relax.permute_dims")(inner)

    def alone(call: relax.Call, found: dict[Any, Any]) -> relax.Expr:
        return found[given] if _is_identity(_order(call)) else call

    def paired(call: relax.Call, found: dict[Any, Any]) -> relax.Expr:
        first, second = (_order(found[each]) for each in (inner, outer))
        return found[given] if _is_identity([first[axis] for axis in second]) else call

    functions = {}
    for variable, function in module.functions_items():
        functions[variable] = function
        if isinstance(function, relax.Function):
            without = rewrite_call(outer, paired, function)
            functions[variable] = rewrite_call(inner, alone, without)
    return tvm.IRModule(functions, attrs=module.attrs)


def _is_identity(order: list[int]) -> bool:
    return order == list(range(len(order)))


def _order(call: relax.Call) -> list[int]:
    axes = call.attrs.axes
    rank = call.args[0].ty.ndim
    return list(reversed(range(rank))) if axes is None else [int(axis) % rank for axis in axes]

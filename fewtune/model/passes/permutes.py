"""Remove permutations of axes that change nothing, which the layout conversion leaves behind.

The conversion wraps operators in permutations, and converts the model's own. Some of them undo the
one before, or permute nothing. Each would copy a whole tensor.
"""

from __future__ import annotations

from typing import Any

from fewtune.runtime.tvm import relax, tvm


def without_idle_permutes(module: tvm.IRModule) -> tvm.IRModule:
    """A Relax module without permutations that keep the order, or only undo the one before."""
    from tvm.relax.dpl import is_op, rewrite_call, wildcard

    given = wildcard()
    inner = is_op("relax.permute_dims")(given)
    outer = is_op("relax.permute_dims")(inner)

    def alone(call: relax.Call, found: dict[Any, Any]) -> relax.Expr:
        return found[given] if _is_idle(_order(call)) else call

    def paired(call: relax.Call, found: dict[Any, Any]) -> relax.Expr:
        first, second = (_order(found[each]) for each in (inner, outer))
        return found[given] if _is_idle([first[axis] for axis in second]) else call

    functions = {}
    for variable, function in module.functions_items():
        functions[variable] = function
        if isinstance(function, relax.Function):
            without = rewrite_call(outer, paired, function)
            functions[variable] = rewrite_call(inner, alone, without)
    return tvm.IRModule(functions, attrs=module.attrs)


def _is_idle(order: list[int]) -> bool:
    return order == list(range(len(order)))


def _order(call: relax.Call) -> list[int]:
    axes = call.attrs.axes
    rank = call.args[0].ty.ndim
    return list(reversed(range(rank))) if axes is None else [int(axis) % rank for axis in axes]

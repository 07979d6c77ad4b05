"""The kernel calls of a lowered model's ``main``."""

from __future__ import annotations

from collections import Counter

from fewtune.runtime.tvm import relax, tvm


def kernel_calls(lowered: tvm.IRModule) -> list[tuple[str, list[relax.Expr]]]:
    """Every kernel that ``main`` calls, with the arguments of the call, in no stated order."""
    return [(call.args[0].name_hint, _arguments(call)) for call in _calls(lowered)]


def call_counts(lowered: tvm.IRModule) -> Counter[str]:
    """How often ``main`` calls each kernel."""
    return Counter(name for name, _ in kernel_calls(lowered))


def calls_fit(lowered: tvm.IRModule) -> bool:
    """Whether ``main`` calls every kernel with tensors of the shapes and types that it takes.

    TVM's ``well_formed`` compares with what it noted of a kernel when that was added, not with the
    kernel.
    """
    return all(_takes(lowered[call.args[0]], call) for call in _calls(lowered))


def _calls(lowered: tvm.IRModule) -> list[relax.Call]:
    found: list[relax.Call] = []

    def visit(expression: relax.Expr) -> None:
        is_call = isinstance(expression, relax.Call) and bool(expression.args)
        if is_call and isinstance(expression.args[0], tvm.ir.GlobalVar):
            found.append(expression)

    relax.analysis.post_order_visit(lowered["main"], visit)
    return found


def _arguments(call: relax.Call) -> list[relax.Expr]:
    return list(call.args[1].fields) if len(call.args) > 1 else []


def _takes(function: object, call: relax.Call) -> bool:
    """Whether a function is a kernel that takes a call's arguments and results."""
    if not isinstance(function, tvm.tirx.PrimFunc):
        return False
    results = list(call.ty.fields) if isinstance(call.ty, relax.TupleType) else [call.ty]
    types = [*(each.ty for each in _arguments(call)), *results]
    return len(function.params) == len(types) and all(map(_fits, types, function.params))


def _fits(given: object, buffer: object) -> bool:
    """Whether a tensor of a static type is what a kernel takes."""
    if not isinstance(given, relax.TensorType) or not isinstance(buffer, tvm.tirx.Buffer):
        return False
    try:
        sizes = [[int(extent) for extent in each.shape] for each in (given, buffer)]
    except TypeError:  # an extent that only a run knows
        return False
    return sizes[0] == sizes[1] and str(given.dtype) == str(buffer.dtype) and not buffer.strides

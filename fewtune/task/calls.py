"""The kernel calls of a lowered model's ``main``."""

from __future__ import annotations

from collections import Counter

from fewtune.runtime.tvm import relax, tvm


def kernel_calls(lowered: tvm.IRModule) -> list[tuple[str, list[relax.Expr]]]:
    """Every kernel that ``main`` calls, with the arguments of the call, in no stated order."""
    found: list[tuple[str, list[relax.Expr]]] = []

    def visit(expression: relax.Expr) -> None:
        if not isinstance(expression, relax.Call) or not expression.args:
            return
        callee = expression.args[0]
        if isinstance(callee, tvm.ir.GlobalVar):
            given = expression.args[1] if len(expression.args) > 1 else None
            found.append((callee.name_hint, list(given.fields) if given is not None else []))

    relax.analysis.post_order_visit(lowered["main"], visit)
    return found


def call_counts(lowered: tvm.IRModule) -> Counter[str]:
    """How often ``main`` calls each kernel."""
    return Counter(name for name, _ in kernel_calls(lowered))


def calls_fit(lowered: tvm.IRModule) -> bool:
    """Whether ``main`` calls every kernel with tensors of the shapes and types that it takes.

    TVM's ``well_formed`` compares with what it noted of a kernel when that was added, not with the
    kernel.
    """
    fits: list[bool] = []

    def visit(expression: relax.Expr) -> None:
        if not isinstance(expression, relax.Call) or not expression.args:
            return
        callee = expression.args[0]
        if not isinstance(callee, tvm.ir.GlobalVar):
            return
        function, result = lowered[callee], expression.ty
        given = list(expression.args[1].fields) if len(expression.args) > 1 else []
        results = list(result.fields) if isinstance(result, relax.TupleType) else [result]
        types = [*(each.ty for each in given), *results]
        is_kernel = isinstance(function, tvm.tirx.PrimFunc) and len(function.params) == len(types)
        fits.append(is_kernel and all(map(_fits, types, function.params)))

    relax.analysis.post_order_visit(lowered["main"], visit)
    return all(fits)


def _fits(given: object, buffer: object) -> bool:
    """Whether a tensor of a static type is what a kernel takes."""
    if not isinstance(given, relax.TensorType) or not isinstance(buffer, tvm.tirx.Buffer):
        return False
    try:
        sizes = [[int(extent) for extent in each.shape] for each in (given, buffer)]
    except TypeError:  # an extent that only a run knows
        return False
    return sizes[0] == sizes[1] and str(given.dtype) == str(buffer.dtype) and not buffer.strides

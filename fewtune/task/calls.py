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

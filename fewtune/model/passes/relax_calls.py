"""Relax calls: how they are fused, and questions that several passes ask about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fewtune.runtime.tvm import relax, tvm

FLOAT = "float32"
# TVM's kinds of operators (``OpPatternKind``), by which ``FuseOps`` decides what is fused. A kernel
# that a pass makes carries its kind as attribute ``op_pattern``.
# Fused with producers and consumers alike.
ELEMENTWISE = 0
# Fused like elementwise operators, but not into a convolution or product before it.
INJECTIVE = 2
# Fused with elementwise operators before it.
REDUCTION = 3
# Fused with elementwise operators after it, such as a convolution.
OUT_ELEMENTWISE_FUSABLE = 4
# Never fused.
OPAQUE = 8

# Gives what a call becomes, for `relax.transform.LegalizeOps`.
Legalizer = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]


def text_attribute(attributes: Mapping[str, Any], name: str, default: str) -> str:
    """An attribute of an ONNX node as text: the importer gives some as bytes."""
    value = attributes.get(name, default)
    return value.decode() if isinstance(value, bytes) else str(value)


def extents_of(value: relax.Expr) -> list[int]:
    """The static shape of a tensor."""
    return [int(extent) for extent in value.ty.shape]


def call_of(mutator: relax.PyExprMutator, value: relax.Expr, operator: str) -> relax.Call | None:
    """The call of an operator that an expression is, or is bound to; None if it is another one."""
    found = mutator.lookup_binding(value) if isinstance(value, relax.Var) else value
    is_call = isinstance(found, relax.Call) and getattr(found.op, "name", "") == operator
    return found if is_call else None


def rewritten(module: tvm.IRModule, mutator: relax.PyExprMutator) -> tvm.IRModule:
    """A module whose Relax functions went through a mutator."""
    for variable, function in module.functions_items():
        if isinstance(function, relax.Function):
            mutator.builder_.update_func(variable, mutator.visit_expr(function))
    return mutator.builder_.finalize()

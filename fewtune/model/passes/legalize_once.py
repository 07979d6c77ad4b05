"""Legalizes equal calls once: TVM writes each kernel in Python, a quarter of an import's time."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import tvm_ffi

from fewtune.model.passes.relax_calls import Legalizer
from fewtune.runtime.tvm import relax
from fewtune.tvm_compat import folding
from fewtune.tvm_compat.values import is_constant


def legalizers() -> dict[str, Legalizer]:
    """TVM's own legalizers by operator; each remembers the kernels that it has made."""
    return {name: _remembering(usual) for name, usual in folding.legalizers().items()}


def _remembering(usual: Legalizer) -> Legalizer:
    made: dict[Hashable, relax.Call] = {}

    def legalized(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        key = _key(call)
        if key is None:
            return usual(builder, call)
        if key not in made:
            kernel = usual(builder, call)
            if not _takes_all(kernel, call):
                return kernel
            made[key] = kernel
        kernel = made[key]
        given = relax.Tuple(list(call.args))
        return relax.Call(kernel.op, [kernel.args[0], given], kernel.attrs, kernel.ty_args)

    return legalized


def _key(call: relax.Call) -> Hashable:
    """The call without its arguments; None if a kernel may be of more than their types."""
    kinds = []
    for each in call.args:
        kind = each.ty
        # A number is written into the kernel.
        is_tensor = isinstance(each, relax.Var) or is_constant(each)
        if not is_tensor or not getattr(kind, "ndim", 0) > 0:
            return None
        kinds.append(str(kind))
    attributes = 0 if call.attrs is None else tvm_ffi.structural_hash(call.attrs)
    return (*kinds, str(call.ty), attributes)


def _takes_all(kernel: Any, call: relax.Call) -> bool:
    """Whether a legalized call is of one kernel that takes the arguments as they are."""
    if not isinstance(kernel, relax.Call) or getattr(kernel.op, "name", "") != "relax.call_tir":
        return False
    if len(kernel.args) != len(("kernel", "arguments")):
        return False
    given = kernel.args[1].fields
    return len(given) == len(call.args) and all(
        one.same_as(other) for one, other in zip(given, call.args, strict=True)
    )

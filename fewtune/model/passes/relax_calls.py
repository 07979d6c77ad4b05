"""Questions about Relax calls that several passes ask."""

from __future__ import annotations

import numpy as np

from fewtune.runtime.tvm import relax, tvm

_FLOAT = "float32"


def call_of(mutator: relax.PyExprMutator, value: relax.Expr, operator: str) -> relax.Call | None:
    """The call of an operator that an expression is, or is bound to; None if it is another one.

    Parameters
    ----------
    mutator : PyExprMutator
        Knows what variables are bound to.
    value : Expr
    operator : str
        Such as ``relax.add``.
    """
    found = mutator.lookup_binding(value) if isinstance(value, relax.Var) else value
    is_call = isinstance(found, relax.Call) and getattr(found.op, "name", "") == operator
    return found if is_call else None


def has_float32_weights(call: relax.Call) -> bool:
    """Whether a convolution or product has constant weights, and all its types are float32."""
    data, weights = call.args
    if not isinstance(weights, tvm.ir.expr.GenericConst):
        return False
    return {str(each) for each in (data.ty.dtype, weights.value.dtype, call.ty.dtype)} == {_FLOAT}


def float32_weights(call: relax.Call) -> np.ndarray | None:
    """A copy of the weights of such a convolution or product; None of another one."""
    return call.args[1].value.numpy() if has_float32_weights(call) else None

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


def float32_weights(call: relax.Call) -> np.ndarray | None:
    """The weights of a convolution or product; None unless constant and all types are float32."""
    data, weights = call.args
    if not isinstance(weights, tvm.ir.expr.GenericConst):
        return None
    types = {str(each) for each in (data.ty.dtype, weights.value.dtype, call.ty.dtype)}
    return weights.value.numpy() if types == {_FLOAT} else None

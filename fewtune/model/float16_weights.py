"""Products of few rows keep their weights in memory as float16.

A model in half precision is computed in float32, but its weights are exact in float16. A product of
few rows reads each weight once or twice, so reading takes most of the time. float16 weights are
read in half the time, and the processor widens a vector of them in one instruction.
"""

from __future__ import annotations

import math

import numpy as np

from fewtune.model.passes.op_patterns import OUT_ELEMENTWISE_FUSABLE
from fewtune.model.passes.pad_filters import Legalizer
from fewtune.model.passes.relax_calls import float32_weights
from fewtune.runtime.tvm import relax, te

FEATURES = ("f16c", "avx2")
# With more rows, arithmetic takes most of the time, and widening adds to it.
_MOST_ROWS = 8
# Smaller weights stay in a core's own cache.
_LEAST_BYTES = 2**18


def legalizer(fallback: Legalizer) -> Legalizer:
    """A legaliser of products of few rows whose constant weights are exact in float16.

    Parameters
    ----------
    fallback : callable
        Legalises all other products.
    """

    def legalized(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        weights = _float16_weights(call)
        if weights is None:
            return fallback(builder, call)
        return builder.call_te(
            _multiplied,
            call.args[0],
            relax.const(weights),
            primfunc_name_hint="half_weights_matmul",
            primfunc_attrs={"op_pattern": OUT_ELEMENTWISE_FUSABLE},
        )

    return legalized


def _float16_weights(call: relax.Call) -> np.ndarray | None:
    """The weights of a product in float16; None if they are to stay as they are."""
    values = float32_weights(call)
    if values is None:
        return None
    rows = math.prod([int(extent) for extent in call.args[0].ty.shape][:-1])
    if values.ndim != 2 or rows > _MOST_ROWS or values.nbytes < _LEAST_BYTES:
        return None
    # If weights are not exact in float16, their first row nearly always shows it.
    if not _is_exact(values[:1]) or not _is_exact(values):
        return None
    return values.astype(np.float16)


def _is_exact(values: np.ndarray) -> bool:
    """Whether float16 holds values exactly."""
    with np.errstate(over="ignore"):
        return np.array_equal(values.astype(np.float16).astype(np.float32), values)


def _multiplied(data: te.Tensor, weights: te.Tensor) -> te.Tensor:
    *others, depth = (int(extent) for extent in data.shape)
    k = te.reduce_axis((0, depth), name="k")

    def summed(*place: te.Var) -> te.PrimExpr:
        *row, column = place
        return te.sum(data(*row, k) * weights[k, column].astype("float32"), axis=[k])

    return te.compute((*others, int(weights.shape[1])), summed, name="half_weights_matmul")

"""Weights kept in memory as float16: of products so narrow that reading the weights takes the time.

A model in half precision is computed in float32, and its weights can stay float16. A product
of few rows reads each of them once or twice: float16 is read in half the time, and a
processor widens a vector of them in one instruction. Nothing is rounded by it.
"""

from __future__ import annotations

import math

import numpy as np

from fewtune.model.passes.pad_filters import Legalizer
from fewtune.runtime.tvm import relax, te, tvm

PRODUCT = "relax.matmul"
FEATURES = ("f16c", "avx2")
# Beyond so many rows arithmetic takes the time, and widening adds to it.
_MOST_ROWS = 8
# Smaller weights stay in a core's own cache.
_LEAST_BYTES = 2**18
_OUT_ELEMENTWISE_FUSABLE = 4


def legalizer(otherwise: Legalizer) -> Legalizer:
    """A legaliser of products of few rows with constant weights that halves hold exactly."""

    def legalized(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        weights = _halves_of(call)
        if weights is None:
            return otherwise(builder, call)
        return builder.call_te(
            _multiplied,
            call.args[0],
            relax.const(weights),
            primfunc_name_hint="half_weights_matmul",
            primfunc_attrs={"op_pattern": _OUT_ELEMENTWISE_FUSABLE},
        )

    return legalized


def _halves_of(call: relax.Call) -> np.ndarray | None:
    data, weights = call.args
    if not isinstance(weights, tvm.ir.expr.GenericConst):
        return None
    if any(str(each) != "float32" for each in (data.ty.dtype, weights.value.dtype, call.ty.dtype)):
        return None
    rows = math.prod([int(extent) for extent in data.ty.shape][:-1])
    values = weights.value.numpy()
    if values.ndim != 2 or rows > _MOST_ROWS or values.nbytes < _LEAST_BYTES:  # noqa: PLR2004
        return None
    # If weights are not exact in float16, their first row nearly always shows it.
    if not _are_halves(values[:1]) or not _are_halves(values):
        return None
    return values.astype(np.float16)


def _are_halves(values: np.ndarray) -> bool:
    with np.errstate(over="ignore"):
        return np.array_equal(values.astype(np.float16).astype(np.float32), values)


def _multiplied(data: te.Tensor, weights: te.Tensor) -> te.Tensor:
    *others, depth = (int(extent) for extent in data.shape)
    k = te.reduce_axis((0, depth), name="k")

    def summed(*place: te.Var) -> te.PrimExpr:
        *row, column = place
        return te.sum(data(*row, k) * weights[k, column].astype("float32"), axis=[k])

    return te.compute((*others, int(weights.shape[1])), summed, name="half_weights_matmul")

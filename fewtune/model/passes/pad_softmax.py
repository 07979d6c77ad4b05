"""Softmax over rows that fill no vectors, such as the 197 tokens of a vision transformer.

TVM does not vectorize a loop of 197: the maximum and the sum of a row are scalar chains. Here a row
is copied to a buffer of 208 in the cache. The padding is the lowest number for the maximum, and
zero for the sum. A kernel of 591 rows of 197 took 0.05 instead of 0.09 ms; 591 rows of 208 take
0.04 ms (an EPYC, two threads).
"""

from __future__ import annotations

from collections.abc import Callable

from fewtune.model.passes.relax_calls import FLOAT, Legalizer, extents_of
from fewtune.runtime.tvm import relax, te, tvm
from fewtune.schedule.tiling import round_up, vector_width


def legalizer(lanes: int, fallback: Legalizer) -> Legalizer:
    """A legalizer of softmax over rows that fill no vectors.

    Rows are float32, along the last axis, longer than a vector, and not divisible by half a vector.
    ``fallback`` legalizes every other softmax.
    """

    def legalized(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        shape = extents_of(call)
        is_last = int(call.attrs.axis) % len(shape) == len(shape) - 1
        if str(call.ty.dtype) != FLOAT or not is_last or _has_vectors(shape[-1], lanes):
            return fallback(builder, call)
        return builder.call_te(_softmax, call.args[0], lanes, primfunc_name_hint="softmax")

    return legalized


def _has_vectors(extent: int, lanes: int) -> bool:
    """Whether a row is vectorized as it is, or too short to gain by vectors."""
    return extent <= lanes or vector_width(extent, lanes, 1) >= lanes // 2


def _softmax(data: te.Tensor, lanes: int) -> te.Tensor:
    """Softmax over the last axis, computed on rows padded to whole vectors."""
    *rows, extent = data.shape
    padded = (*rows, round_up(int(extent), lanes))
    low = tvm.tirx.min_value(FLOAT)

    def over_row(fold: Callable[..., tvm.tirx.PrimExpr], row: te.Tensor, name: str) -> te.Tensor:
        place = te.reduce_axis((0, padded[-1]), name=f"{name}_place")
        return te.compute(rows, lambda *at: fold(row(*at, place), axis=place), name=name)

    row = te.compute(
        padded,
        lambda *at: tvm.tirx.if_then_else(at[-1] < extent, data(*at), low),
        name="softmax_padded",
    )
    largest = over_row(te.max, row, "softmax_largest")

    def power(*at: tvm.tirx.PrimExpr) -> tvm.tirx.PrimExpr:
        # The index decides, not the value: a masked row may hold nothing but the lowest number.
        powered = tvm.tirx.exp(row(*at) - largest(*at[:-1]))
        return tvm.tirx.Select(at[-1] < extent, powered, tvm.tirx.const(0, FLOAT))

    powers = te.compute(padded, power, name="softmax_powers")
    total = over_row(te.sum, powers, "softmax_sum")
    return te.compute(data.shape, lambda *at: powers(*at) / total(*at[:-1]), name="softmax")

"""Sums, means and softmax in shapes that TVM's own kernels are slow or inexact in.

In NHWC a channel's elements are far apart, so each channel is one sum of all of them. Such a sum of
14,400 elements loses digits: the gate of a text detector was off by 1.7e-4 of itself. A mean of the
means of rows adds up as few numbers as a row has. It is faster, too, since rows are summed side by
side. With the convolution before them, 96 channels of 60x60 took 0.29 ms and take 0.07, 480 of
14x14 0.113 and 0.047, 2048 of 7x7 0.150 and 0.097 (an EPYC, two threads, in turns).

Rows of a softmax may fill no vectors, such as those of the 197 tokens of a vision transformer. TVM
does not vectorize a loop of 197: the maximum and the sum of a row are scalar chains. Here a row is
copied to a buffer of 208 in the cache. The padding is the lowest number for the maximum, and zero
for the sum. A kernel of 591 rows of 197 took 0.05 instead of 0.09 ms; 591 rows of 208 take 0.04 ms
(an EPYC, two threads).
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from fewtune.model.passes.relax_calls import FLOAT, Legalizer, extents_of
from fewtune.runtime.tvm import relax, te, tvm
from fewtune.schedule.tiling import round_up, vector_width

SUMS: dict[str, Callable[..., relax.Expr]] = {
    "relax.mean": relax.op.mean,
    "relax.sum": relax.op.sum,
}
# From so many elements on, a second kernel pays: 96 channels of 14x14 gain 0.003 ms, 64 of 7x7 lose
# 0.0003.
_LEAST_ELEMENTS = 2**14


def long_sum(name: str, fallback: Legalizer) -> Legalizer:
    """A legalizer of a sum or mean.

    ``fallback`` legalizes one sum. It is used for small planes, for a single axis, and if the last
    axis is summed: those sums are computed in the lanes of vectors.
    """
    operator = SUMS[name]

    def legalized(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        axes = _split_axes(call)
        if not axes:
            return fallback(builder, call)
        given = call.args[0]
        for axis in reversed(axes[1:]):
            part = builder.normalize(operator(given, [axis], keepdims=True))
            given = builder.emit(fallback(builder, part))
        whole = builder.normalize(operator(given, call.attrs.axis, call.attrs.keepdims))
        return fallback(builder, whole)

    return legalized


def _split_axes(call: relax.Call) -> list[int]:
    """The axes that are summed one after the other; empty if all are summed at once."""
    extents = extents_of(call.args[0])
    rank = len(extents)
    summed = range(rank) if call.attrs.axis is None else [int(a) % rank for a in call.attrs.axis]
    axes = [axis for axis in sorted(summed) if extents[axis] > 1]
    is_large = prod(extents) >= _LEAST_ELEMENTS
    # A mean of integers is cut off, and would be twice.
    is_split = is_large and "float" in str(call.ty.dtype) and rank - 1 not in summed
    return axes if len(axes) > 1 and is_split else []


def padded_softmax(lanes: int, fallback: Legalizer) -> Legalizer:
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

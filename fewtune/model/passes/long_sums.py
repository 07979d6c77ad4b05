"""Means and sums over the rows and columns of a plane in NHWC, one axis after the other.

In NHWC a channel's elements are far apart, so each channel is one sum of all of them. Such a sum of
14,400 elements loses digits: the gate of a text detector was off by 1.7e-4 of itself. A mean of the
means of rows adds up as few numbers as a row has. It is faster, too, since rows are summed side by
side. With the convolution before them, 96 channels of 60x60 took 0.29 ms and take 0.07, 480 of
14x14 0.113 and 0.047, 2048 of 7x7 0.150 and 0.097 (an EPYC, two threads, in turns).
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from fewtune.model.passes.relax_calls import Legalizer, extents_of
from fewtune.runtime.tvm import relax

OPERATORS: dict[str, Callable[..., relax.Expr]] = {
    "relax.mean": relax.op.mean,
    "relax.sum": relax.op.sum,
}
# From so many elements on, a second kernel pays: 96 channels of 14x14 gain 0.003 ms, 64 of 7x7 lose
# 0.0003.
_LEAST_ELEMENTS = 2**14


def legalizer(name: str, fallback: Legalizer) -> Legalizer:
    """A legalizer of a sum or mean.

    ``fallback`` legalizes one sum. It is used for small planes, for a single axis, and if the last
    axis is summed: those sums are computed in the lanes of vectors.
    """
    operator = OPERATORS[name]

    def legalized(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        axes = _axes(call)
        if not axes:
            return fallback(builder, call)
        given = call.args[0]
        for axis in reversed(axes[1:]):
            part = builder.normalize(operator(given, [axis], keepdims=True))
            given = builder.emit(fallback(builder, part))
        whole = builder.normalize(operator(given, call.attrs.axis, call.attrs.keepdims))
        return fallback(builder, whole)

    return legalized


def _axes(call: relax.Call) -> list[int]:
    """The axes that are summed one after the other; empty if all are summed at once."""
    extents = extents_of(call.args[0])
    rank = len(extents)
    summed = range(rank) if call.attrs.axis is None else [int(a) % rank for a in call.attrs.axis]
    axes = [axis for axis in sorted(summed) if extents[axis] > 1]
    is_large = prod(extents) >= _LEAST_ELEMENTS
    # A mean of integers is cut off, and would be twice.
    is_split = is_large and "float" in str(call.ty.dtype) and rank - 1 not in summed
    return axes if len(axes) > 1 and is_split else []

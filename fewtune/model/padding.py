"""Filters that fill no vector: a convolution gets as many as do, and its result loses the rest.

The classifier of SqueezeNet has 1000 filters, the heads of a detector 75. No vector of 16 divides
them, so that every schedule works with half vectors or with scalars. With filters of zeros beside
them the convolution is one like any other, and what they come to is left out by the kernel after
it, which adds bias and activation too. That costs writing the result and reading it once more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fewtune.model.winograd import LANES, TYPE
from fewtune.task.analysis import cost_bytes
from fewtune.tvm_runtime import relax, te, tvm

UNPADDED = "unpadded"
_BYTES = 4
# Parts of the throughput of full vectors, by the longest vector that divides the filters: half and
# quarter vectors, and shorter ones.
_PART_VECTOR, _NO_VECTOR = 0.6, 0.3
_SHORTEST_VECTOR = LANES // 4
# What padding has to bring the estimate down to: the estimate is rough.
_LEAST_GAIN = 0.9
# TVM's kind of operator (OpPatternKind) that is fused with what follows, not into a convolution:
# there, vectors would end within the results of one pixel.
_INJECTIVE = 2

Legalizer = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]


@dataclass(frozen=True)
class Filters:
    """A convolution, as far as padding its filters is concerned.

    Attributes
    ----------
    filters : int
    depth : int
        Products that are summed for one output.
    points : int
        Outputs of one filter.
    given : int
        Elements of the input.
    """

    filters: int
    depth: int
    points: int
    given: int

    @property
    def padded(self) -> int:
        """As many filters as fill vectors."""
        return math.ceil(self.filters / LANES) * LANES

    @property
    def flops(self) -> int:
        """A multiplication and an addition are two."""
        return 2 * self.points * self.depth * self.filters

    @property
    def added_flops(self) -> int:
        """Of the filters beyond those given."""
        return 2 * self.points * self.depth * (self.padded - self.filters)

    def cost(self, padded: bool) -> float:
        """Roughly the time it takes, in the bytes that memory moves in it."""
        results = self.points * self.filters
        elements = self.given + self.depth * self.filters / 2 + results
        if not padded:
            vector = math.gcd(self.filters, LANES)
            pace = _PART_VECTOR if vector >= _SHORTEST_VECTOR else _NO_VECTOR
            return cost_bytes(self.flops / pace, _BYTES * elements)
        elements += self.points * self.padded + results
        return cost_bytes(self.flops + self.added_flops, _BYTES * elements, calls=2)

    @property
    def gains(self) -> bool:
        """Whether padding is expected to pay."""
        return self.padded > self.filters and self.cost(True) < _LEAST_GAIN * self.cost(False)


class Padding:
    """Legalises convolutions with padded filters where that pays, and remembers them.

    Attributes
    ----------
    chosen : list of Filters
    """

    def __init__(self) -> None:
        self.chosen: list[Filters] = []

    @property
    def added_flops(self) -> int:
        """Operations of all filters that were added."""
        return sum(filters.added_flops for filters in self.chosen)

    def legalizer(self, otherwise: Legalizer) -> Legalizer:
        """A legaliser for ``relax.nn.conv2d`` that hands on what it does not pad."""

        def legalized(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
            filters = filters_of(call)
            if filters is None or not filters.gains:
                return otherwise(builder, call)
            self.chosen.append(filters)
            weights = call.args[1].value.numpy()
            more = filters.padded - filters.filters
            wide = np.pad(weights, [(0, 0)] * (weights.ndim - 1) + [(0, more)])
            padded = builder.normalize(
                relax.Call(call.op, [call.args[0], relax.const(wide)], call.attrs)
            )
            result = builder.emit(otherwise(builder, padded))
            return builder.call_te(
                lambda given: unpadded(given, filters.filters),
                result,
                primfunc_name_hint=UNPADDED,
                primfunc_attrs={"op_pattern": _INJECTIVE},
            )

        return legalized


def unpadded(given: te.Tensor, filters: int) -> te.Tensor:
    """The first filters of a result in NHWC."""
    shape = (*given.shape[:-1], filters)
    return te.compute(shape, lambda *place: given(*place), name=UNPADDED)


def filters_of(call: relax.Call) -> Filters | None:
    """The filters of a convolution that could be padded: in NHWC, ungrouped, known weights."""
    data, weights = call.args
    attributes: Any = call.attrs
    known = isinstance(weights, tvm.ir.expr.GenericConst)
    if not known or (attributes.data_layout, attributes.kernel_layout) != ("NHWC", "HWIO"):
        return None
    if int(attributes.groups) != 1 or str(weights.value.dtype) != TYPE:
        return None
    *kernel, filters = (int(extent) for extent in weights.value.shape)
    result = [int(extent) for extent in call.ty.shape]
    given = [int(extent) for extent in data.ty.shape]
    return Filters(filters, math.prod(kernel), math.prod(result[:-1]), math.prod(given))

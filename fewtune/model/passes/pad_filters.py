"""Pads the filters of convolutions with zeros, to whole vectors.

The classifier of SqueezeNet has 1000 filters, the heads of a detector 75. Vectors of 16 do not
divide these, so every schedule has half vectors or scalars. With added filters of zeros, schedules
have full vectors. The next kernel, which computes bias and activation, drops the added outputs.
That costs one more write and read of the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fewtune.model.passes.op_patterns import INJECTIVE
from fewtune.model.passes.winograd import TYPE
from fewtune.runtime.tvm import relax, te, tvm
from fewtune.schedule.tiling import round_up
from fewtune.task.analysis import FLOAT32_BYTES, cost_bytes

UNPADDED = "unpadded"
# Throughput relative to full vectors: of half and quarter vectors, and of shorter ones. Guessed
# from few kernels: 1000 filters in half vectors took 1.35 times as long as 1008 in full ones.
_PART_VECTOR, _NO_VECTOR = 0.6, 0.3
_SHORTEST_PART = 4
# The estimate is rough: padded, a kernel must cost at most this part of what it costs as it is.
LEAST_GAIN = 0.9

Legalizer = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]


@dataclass(frozen=True)
class Filters:
    """The extents of a convolution that decide whether padding its filters pays.

    Attributes
    ----------
    filters : int
    depth : int
        Terms in the sum of one output.
    points : int
        Outputs of one filter.
    given : int
        Elements of the input.
    lanes : int
        Elements of a vector register.
    """

    filters: int
    depth: int
    points: int
    given: int
    lanes: int

    @property
    def padded(self) -> int:
        """Filters with padding: whole vectors."""
        return round_up(self.filters, self.lanes)

    @property
    def flops(self) -> int:
        """Operations without padding; a multiplication and an addition are two."""
        return 2 * self.points * self.depth * self.filters

    @property
    def added_flops(self) -> int:
        """Operations of the added filters."""
        return 2 * self.points * self.depth * (self.padded - self.filters)

    @property
    def gains(self) -> bool:
        """Whether padding is expected to pay."""
        return self.padded > self.filters and self._padded_cost() < LEAST_GAIN * self._cost()

    def _cost(self) -> float:
        """Estimated time without padding, in bytes that memory could move in it."""
        has_vectors = math.gcd(self.filters, self.lanes) * _SHORTEST_PART >= self.lanes
        speed = _PART_VECTOR if has_vectors else _NO_VECTOR
        return cost_bytes(self.flops / speed, FLOAT32_BYTES * self._elements())

    def _padded_cost(self) -> float:
        """The same with padding: the result is written and read once more."""
        elements = self._elements() + self.points * (self.padded + self.filters)
        return cost_bytes(self.flops + self.added_flops, FLOAT32_BYTES * elements, calls=2)

    def _elements(self) -> float:
        """Elements moved; weights count half, since they are prefetched during the arithmetic."""
        return self.given + self.depth * self.filters / 2 + self.points * self.filters


class Padded(Protocol):
    """A padded kernel: `Filters`, or a `fewtune.model.passes.pad_matmul.Product`."""

    @property
    def added_flops(self) -> int:
        """Operations on the padding."""


class Padding:
    """Legalises convolutions with padded filters where that pays, and records what was padded.

    Parameters
    ----------
    lanes : int
        float32 values of a vector register.

    Attributes
    ----------
    chosen : list of Padded
    """

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self.chosen: list[Padded] = []

    @property
    def added_flops(self) -> int:
        """Operations on all padding."""
        return sum(each.added_flops for each in self.chosen)

    def legalizer(self, fallback: Legalizer) -> Legalizer:
        """A legaliser for ``relax.nn.conv2d``, which pads some convolutions.

        Parameters
        ----------
        fallback : callable
            Legalises the convolutions, padded ones as well.
        """

        def legalized(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
            filters = self.filters_of(call)
            if filters is None or not filters.gains:
                return fallback(builder, call)
            self.chosen.append(filters)
            weights = call.args[1].value.numpy()
            more = filters.padded - filters.filters
            wide = np.pad(weights, [(0, 0)] * (weights.ndim - 1) + [(0, more)])
            padded = builder.normalize(
                relax.Call(call.op, [call.args[0], relax.const(wide)], call.attrs)
            )
            return without_padding(builder, fallback(builder, padded), call)

        return legalized

    def filters_of(self, call: relax.Call) -> Filters | None:
        """The filters of a convolution; None if they cannot be padded."""
        weights = known_weights(call)
        if weights is None:
            return None
        *kernel, filters = weights
        result = [int(extent) for extent in call.ty.shape]
        given = [int(extent) for extent in call.args[0].ty.shape]
        points = math.prod(result[:-1])
        return Filters(filters, math.prod(kernel), points, math.prod(given), self.lanes)


def without_padding(
    builder: relax.BlockBuilder, padded: relax.Expr, call: relax.Call
) -> relax.Call:
    """Drop the padding of a result: keep the shape of the original call's result.

    Parameters
    ----------
    builder : BlockBuilder
    padded : Expr
        The result with padding at the end of its axes.
    call : relax.Call
        The original call.
    """
    shape = [int(extent) for extent in call.ty.shape]

    def unpadded(given: te.Tensor) -> te.Tensor:
        return te.compute(shape, lambda *place: given(*place), name=UNPADDED)

    return injective(builder, unpadded, builder.emit(padded), UNPADDED)


def injective(
    builder: relax.BlockBuilder,
    compute: Callable[[te.Tensor], te.Tensor],
    given: relax.Expr,
    name: str,
) -> relax.Call:
    """Call a kernel that is fused with elementwise operators, not into convolutions and products.

    There, vectors would end within the results of one pixel.
    """
    attributes = {"op_pattern": INJECTIVE}
    return builder.call_te(compute, given, primfunc_name_hint=name, primfunc_attrs=attributes)


def known_weights(call: relax.Call) -> list[int] | None:
    """The shape of a convolution's weights, if they can be rewritten.

    Parameters
    ----------
    call : relax.Call
        Of ``relax.nn.conv2d``.

    Returns
    -------
    shape : list of int, or None
        Kernel rows, kernel columns, channels, filters. None unless the convolution is in NHWC and
        ungrouped, and its weights are a float32 constant.
    """
    weights, attributes = call.args[1], call.attrs
    if not isinstance(weights, tvm.ir.expr.GenericConst) or int(attributes.groups) != 1:
        return None
    if (attributes.data_layout, attributes.kernel_layout) != ("NHWC", "HWIO"):
        return None
    if str(weights.value.dtype) != TYPE:
        return None
    return [int(extent) for extent in weights.value.shape]

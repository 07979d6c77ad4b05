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
from typing import Protocol

import numpy as np

from fewtune.model.passes.winograd import TYPE, filled
from fewtune.runtime.tvm import relax, te, tvm
from fewtune.task.analysis import FLOAT32_BYTES, cost_bytes

UNPADDED = "unpadded"
# Parts of the throughput of full vectors, guessed from few kernels (1000 filters in half vectors
# took 1.35 times as long as 1008 in full ones): of halves and quarters, and of shorter ones.
_PART_VECTOR, _NO_VECTOR = 0.6, 0.3
_SHORTEST_PART = 4
# What padding has to bring the estimate down to: the estimate is rough.
LEAST_GAIN = 0.9
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
        """As many filters as fill vectors."""
        return filled(self.filters, self.lanes)

    @property
    def flops(self) -> int:
        """A multiplication and an addition are two."""
        return 2 * self.points * self.depth * self.filters

    @property
    def added_flops(self) -> int:
        """Of the filters beyond those given."""
        return 2 * self.points * self.depth * (self.padded - self.filters)

    @property
    def gains(self) -> bool:
        """Whether padding is expected to pay."""
        return self.padded > self.filters and self._padded_cost() < LEAST_GAIN * self._cost()

    def _cost(self) -> float:
        """Roughly the time it takes as it is, in the bytes that memory moves in it."""
        has_vectors = math.gcd(self.filters, self.lanes) * _SHORTEST_PART >= self.lanes
        speed = _PART_VECTOR if has_vectors else _NO_VECTOR
        return cost_bytes(self.flops / speed, FLOAT32_BYTES * self._elements())

    def _padded_cost(self) -> float:
        """The same of the padded one, whose result is written once more and read again."""
        elements = self._elements() + self.points * (self.padded + self.filters)
        return cost_bytes(self.flops + self.added_flops, FLOAT32_BYTES * elements, calls=2)

    def _elements(self) -> float:
        """What is moved: weights count half, being fetched ahead of the arithmetic."""
        return self.given + self.depth * self.filters / 2 + self.points * self.filters


class Padded(Protocol):
    """What was padded: `Filters`, or a `fewtune.model.passes.pad_matmul.Product`."""

    @property
    def added_flops(self) -> int:
        """Operations of what was added."""


class Padding:
    """Legalises convolutions with padded filters where that pays, and remembers what was padded.

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
        """Operations of all that was added."""
        return sum(each.added_flops for each in self.chosen)

    def legalizer(self, otherwise: Legalizer) -> Legalizer:
        """A legaliser for ``relax.nn.conv2d`` that hands on what it does not pad.

        Parameters
        ----------
        otherwise : callable
            Legalises what is left as it is, and the padded convolutions themselves.
        """

        def legalized(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
            filters = self.filters_of(call)
            if filters is None or not filters.gains:
                return otherwise(builder, call)
            self.chosen.append(filters)
            weights = call.args[1].value.numpy()
            more = filters.padded - filters.filters
            wide = np.pad(weights, [(0, 0)] * (weights.ndim - 1) + [(0, more)])
            padded = builder.normalize(
                relax.Call(call.op, [call.args[0], relax.const(wide)], call.attrs)
            )
            return without_padding(builder, otherwise(builder, padded), call)

        return legalized

    def filters_of(self, call: relax.Call) -> Filters | None:
        """The filters of a convolution; None where they could not be padded."""
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
    """The first places of every axis of a padded result: what the call was to give."""
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
    """A kernel that is fused with what is elementwise around it, and into no product."""
    attributes = {"op_pattern": _INJECTIVE}
    return builder.call_te(compute, given, primfunc_name_hint=name, primfunc_attrs=attributes)


def known_weights(call: relax.Call) -> list[int] | None:
    """The shape of a convolution's weights, where they can be rewritten.

    Parameters
    ----------
    call : relax.Call
        Of ``relax.nn.conv2d``.

    Returns
    -------
    shape : list of int, or None
        Kernel, channels, filters; None unless the convolution is in NHWC and ungrouped, and its
        weights are a float32 constant.
    """
    weights, attributes = call.args[1], call.attrs
    if not isinstance(weights, tvm.ir.expr.GenericConst) or int(attributes.groups) != 1:
        return None
    if (attributes.data_layout, attributes.kernel_layout) != ("NHWC", "HWIO"):
        return None
    if str(weights.value.dtype) != TYPE:
        return None
    return [int(extent) for extent in weights.value.shape]

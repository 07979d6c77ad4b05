"""Pads convolutions and products with zeros, to whole vectors and register tiles.

The classifier of SqueezeNet has 1000 filters, the heads of a detector 75. Vectors of 16 do not
divide these, so every schedule has half vectors or scalars. A vision transformer has 197 tokens, a
prime number: no vector divides the 197 columns of its scores, and a register tile has one of their
197 rows, so every row reads the whole other operand. With added filters, rows and columns of zeros,
vectors and tiles are full. So are those of a convolution in one direction whose result has a prime
number of columns, such as speech encoders have.

The kernel after it, which computes bias and activation, drops the added results. That costs one
more write and read of the result. Constant weights are padded at compile time. The copies that pad
another operand are fused into the kernel that computes it, if that is elementwise or a transpose.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd, prod

import numpy as np

from fewtune.model.passes.relax_calls import FLOAT, INJECTIVE, Legalizer, extents_of
from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.tvm import relax, te, tvm
from fewtune.schedule.tiling import grouped_tile, padded_rows, round_up, tile_rate
from fewtune.task.analysis import FLOAT32_BYTES, cost_bytes
from fewtune.tvm_compat.values import is_constant, known_array

UNPADDED, _PADDED = "unpadded", "padded"
# The estimate is rough: padded, a kernel must cost at most this part of what it costs as it is.
_LEAST_GAIN = 0.9
# Throughput relative to full vectors: of vectors of eight, of four, and of shorter ones. 1000
# filters by eight took 1.35 times as long as 1008 by sixteen. By four, 12 filters reached 85 GFLOPS
# where 16 by eight reached 191 (a Zen 3), and 90 of a peak of 235 by sixteen (a Zen 4).
_BY_8, _BY_4, _NO_VECTOR = 0.6, 0.45, 0.3
_SHORTEST_PART, _AVX2_LANES = 4, 8
# Groups of a result's row tiles, with vectors of 8. With vectors of 16, groups gain nothing: of its
# time, a vision transformer of 197 tokens takes 0.61 with padded rows, grouped or not (a Zen 4).
_GROUPS_OF_8 = 4
# Axes of a matrix of weights.
_MATRIX = 2
# Weights are padded to tiles of so many vectors, if that adds at most this part of their columns.
_VECTORS, _MOST_ADDED = 4, 0.02
# Speed relative to the peak: of loops that LLVM vectorizes, and of tiles of one row, which read the
# other operand from the second-level cache for every row (0.47 and 0.49 on an EPYC).
_VECTORIZED, _ONE_ROW = 0.4, 0.5
# Cost of a byte that a copy moves within the caches, relative to one from memory: a rough guess.
_IN_CACHE = 0.25


def filters_gain(filters: int, depth: int, points: int, given: int, lanes: int) -> bool:
    """Whether padding the filters of a convolution to whole vectors is expected to pay.

    Parameters
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
    padded = round_up(filters, lanes)
    flops = 2 * points * depth * filters
    # Weights count half, since they are prefetched during the arithmetic.
    moved = given + depth * filters / 2 + points * filters
    part = gcd(filters, lanes)
    has_vectors = part * _SHORTEST_PART >= lanes
    speed = (_BY_8 if part >= _AVX2_LANES else _BY_4) if has_vectors else _NO_VECTOR
    # With padding, the result is written and read once more.
    more = points * (padded + filters)
    after = cost_bytes(2 * points * depth * padded, FLOAT32_BYTES * (moved + more), calls=2)
    before = cost_bytes(flops / speed, FLOAT32_BYTES * moved)
    return padded > filters and after < _LEAST_GAIN * before


@dataclass(frozen=True)
class Product:
    """A product of two matrices; the first is not constant.

    Attributes
    ----------
    count : int
        Products of one call.
    rows, depth, columns : int
    traits : CpuTraits
        Of the CPU whose registers the padded product fills.
    is_weighted : bool
        Whether the second matrix is constant. Padding it copies nothing at run time.
    is_one_matrix : bool
        Whether all rows are of one axis, that can be padded.
    """

    count: int
    rows: int
    depth: int
    columns: int
    traits: CpuTraits
    is_weighted: bool = False
    is_one_matrix: bool = True

    @property
    def padded_columns(self) -> int:
        """Columns with padding: whole vectors, or tiles of several for weights of many columns."""
        lanes = self.traits.lanes(FLOAT)
        wide = round_up(self.columns, _VECTORS * lanes)
        is_wide = self.is_weighted and wide - self.columns <= _MOST_ADDED * self.columns
        return wide if is_wide and self.columns % lanes else round_up(self.columns, lanes)

    @property
    def padded_rows(self) -> int:
        """Rows with padding: whole register tiles."""
        return self.rows_beside(self.padded_columns) if self.is_one_matrix else self.rows

    @property
    def _groups(self) -> int:
        """Groups of row tiles that are wanted."""
        is_short = self.traits.lanes(FLOAT) == _AVX2_LANES
        return _GROUPS_OF_8 if self.is_weighted and is_short else 1

    def rows_beside(self, columns: int) -> int:
        """Rows with padding, of a result with so many columns."""
        return padded_rows(self.rows, columns, self.traits, FLOAT, self._groups)

    @property
    def gains(self) -> bool:
        """Whether padding is expected to pay."""
        return self.pays(self.padded_rows, self.padded_columns)

    def pays(self, *padded: int) -> bool:
        """Whether so many rows and columns are expected to pay."""
        given = self.rows, self.columns
        return padded != given and self._cost(*padded) < _LEAST_GAIN * self._cost(*given)

    def _cost(self, rows: int, columns: int) -> float:
        """Estimated time with so many rows and columns, in bytes that memory could move in it."""
        flops = 2 * self.count * rows * self.depth * columns
        copies = [rows * self.depth] if rows > self.rows else []
        if columns > self.columns and not self.is_weighted:
            copies.append(columns * self.depth)
        if (rows, columns) != (self.rows, self.columns):
            copies.append(self.rows * self.columns)
        moved = self.rows * self.depth + self.depth * self.columns + self.rows * self.columns
        size = FLOAT32_BYTES * self.count * (moved + 2 * _IN_CACHE * sum(copies))
        return cost_bytes(flops / self._speed(rows, columns), size, calls=1 + len(copies))

    def _speed(self, rows: int, columns: int) -> float:
        """Speed relative to the peak, by rule."""
        lanes = self.traits.lanes(FLOAT)
        in_tile, elements, part = grouped_tile(rows, columns, self.traits, FLOAT, self._groups)
        speed = tile_rate(in_tile, elements, lanes, self.traits) / lanes
        return part * max(_VECTORIZED, min(speed, 1.0 if in_tile > 1 else _ONE_ROW))


# The call with padded operands; None if padding does not pay.
Padded = Callable[[relax.BlockBuilder, relax.Call, CpuTraits], relax.Call | None]


class Padding:
    """Legalizes convolutions and products with padding where that pays, and counts them."""

    def __init__(self) -> None:
        self.count = 0

    def legalizer(self, padded: Padded, traits: CpuTraits, fallback: Legalizer) -> Legalizer:
        """Pad calls by `padded_convolution` or `padded_product`; ``fallback`` legalizes all."""

        def legalized(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
            wide = padded(builder, call, traits)
            if wide is None:
                return fallback(builder, call)
            self.count += 1
            return without_padding(builder, fallback(builder, builder.normalize(wide)), call)

        return legalized


def padded_convolution(
    _builder: relax.BlockBuilder, call: relax.Call, traits: CpuTraits
) -> relax.Call | None:
    """A convolution with padded filters, in one direction also with padded columns of its result.

    None if neither pays.
    """
    weights = known_weights(call)
    if weights is None:
        return None
    *kernel, filters = weights
    batch, height, columns, _ = extents_of(call)
    given, lanes = prod(extents_of(call.args[0])), traits.lanes(FLOAT)
    points, depth = batch * height * columns, prod(kernel)
    wide = round_up(filters, lanes)
    if not filters_gain(filters, depth, points, given, lanes):
        wide = filters
    product = Product(batch, columns, depth, wide, traits, is_weighted=True)
    more = product.rows_beside(wide)
    if height > 1 or not product.pays(more, wide):
        more = columns
    if more > columns:
        return _with_columns(call, _wider(call.args[1], wide), more)
    if wide > filters:
        return relax.Call(call.op, [call.args[0], _wider(call.args[1], wide)], call.attrs)
    return None


def _with_columns(call: relax.Call, weights: relax.Expr, columns: int) -> relax.Call:
    """A convolution with other weights, that is padded at its right for more columns."""
    attributes = call.attrs
    top, left, bottom, _ = map(int, attributes.padding)
    reach = (extents_of(weights)[1] - 1) * int(attributes.dilation[1]) + 1
    last = (columns - 1) * int(attributes.strides[1])
    right = last + reach - left - extents_of(call.args[0])[2]
    return relax.op.nn.conv2d(
        call.args[0],
        weights,
        strides=attributes.strides,
        padding=[top, left, bottom, right],
        dilation=attributes.dilation,
        data_layout=attributes.data_layout,
        kernel_layout=attributes.kernel_layout,
    )


def padded_product(
    builder: relax.BlockBuilder, call: relax.Call, traits: CpuTraits
) -> relax.Call | None:
    """A product with padded extents; None if that does not pay."""
    product = product_of(call, traits)
    if product is None or not product.gains:
        return None
    first, second = call.args
    more, wide = product.padded_rows, product.padded_columns
    if more > product.rows:
        first = _longer(builder, first, -2, more)
    second = _wider(second, wide) if product.is_weighted else _longer(builder, second, -1, wide)
    return relax.Call(call.op, [first, second], call.attrs)


def product_of(call: relax.Call, traits: CpuTraits) -> Product | None:
    """The product of a call of ``relax.matmul``; None if it cannot be padded."""
    is_float = all(str(each.ty.dtype) == FLOAT for each in (*call.args, call))
    if not is_float or is_constant(call.args[0]):
        return None
    first, second = map(extents_of, call.args)
    if is_constant(call.args[1]):
        if len(second) != _MATRIX or len(first) < _MATRIX:
            return None
        *matrices, _, depth = first
        return Product(1, prod(first[:-1]), depth, second[-1], traits, True, prod(matrices) == 1)
    is_plain = len(first) == len(second) > 1 and first[:-2] == second[:-2]
    if not is_plain:
        return None
    return Product(prod(first[:-2]), first[-2], first[-1], second[-1], traits)


def known_weights(call: relax.Call) -> list[int] | None:
    """The shape of a convolution's weights: kernel rows, kernel columns, channels, filters.

    None unless the convolution is in NHWC and ungrouped, and its weights are a float32 constant.
    """
    weights, attributes = call.args[1], call.attrs
    if not is_constant(weights) or int(attributes.groups) != 1:
        return None
    if (attributes.data_layout, attributes.kernel_layout) != ("NHWC", "HWIO"):
        return None
    return extents_of(weights) if str(weights.value.dtype) == FLOAT else None


def without_padding(
    builder: relax.BlockBuilder, padded: relax.Expr, call: relax.Call
) -> relax.Call:
    """Drop the padding at the end of a result's axes: keep the shape of the original call's."""
    shape = extents_of(call)

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


def _wider(weights: relax.Expr, extent: int) -> relax.Expr:
    """Weights whose last axis is padded with zeros."""
    if extents_of(weights)[-1] == extent:
        return weights
    array = known_array(weights)
    more = [(0, 0)] * (array.ndim - 1) + [(0, extent - array.shape[-1])]
    return relax.const(np.pad(array, more))


def _longer(builder: relax.BlockBuilder, operand: relax.Expr, axis: int, extent: int) -> relax.Expr:
    """An operand that is padded with zeros at the end of an axis."""
    shape = extents_of(operand)
    if shape[axis] == extent:
        return operand
    wide = [*shape]
    wide[axis] = extent

    def filled_up(given: te.Tensor) -> te.Tensor:
        zero = tvm.tirx.const(0, FLOAT)
        return te.compute(
            wide,
            lambda *at: tvm.tirx.if_then_else(at[axis] < shape[axis], given(*at), zero),
            name=_PADDED,
        )

    return builder.emit(injective(builder, filled_up, operand, _PADDED))

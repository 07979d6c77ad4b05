"""Pads matrix products whose extents do not divide into register tiles, such as attention's.

A vision transformer has 197 tokens, a prime number. No vector divides the 197 columns of its
scores. A register tile has one of their 197 rows, so every row reads the whole other operand. A few
added rows and columns of zeros make full register tiles possible. The kernel after the product
drops the added results. The copies that pad an operand are fused into the kernel that computes it,
if that is elementwise or a transpose.

Constant weights get columns only, at compile time: the classes of a text recogniser are any number.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from fewtune.model.passes.pad_filters import (
    LEAST_GAIN,
    Legalizer,
    Padding,
    injective,
    without_padding,
)
from fewtune.model.passes.winograd import TYPE
from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.tvm import relax, te, tvm
from fewtune.schedule.tiling import padded_rows, register_tile, round_up, tile_rate
from fewtune.task.analysis import FLOAT32_BYTES, cost_bytes

_PRODUCT = "relax.matmul"
# Axes of a matrix of weights.
_MATRIX = 2
# Weights are padded to tiles of so many vectors, if that adds at most this part of their columns.
_VECTORS, _MOST_ADDED = 4, 0.02
_PADDED = "padded"
# Speed relative to the peak: of loops that LLVM vectorises, and of tiles of one row, which read the
# other operand from the second-level cache for every row (0.47 and 0.49 on an EPYC).
_NO_VECTOR, _ONE_ROW = 0.4, 0.5
# Cost of a byte that a copy moves within the caches, relative to one from memory: a rough guess.
_IN_CACHE = 0.25


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
        Whether the second matrix is constant. Padding it copies nothing at run time, and rows are
        not padded.
    """

    count: int
    rows: int
    depth: int
    columns: int
    traits: CpuTraits
    is_weighted: bool = False

    @property
    def padded_columns(self) -> int:
        """Columns with padding: whole vectors, or tiles of several for weights of many columns."""
        lanes = self.traits.lanes(TYPE)
        wide = round_up(self.columns, _VECTORS * lanes)
        is_wide = self.is_weighted and wide - self.columns <= _MOST_ADDED * self.columns
        return wide if is_wide and self.columns % lanes else round_up(self.columns, lanes)

    @property
    def padded_rows(self) -> int:
        """Rows with padding: whole register tiles."""
        if self.is_weighted:
            return self.rows
        return padded_rows(self.rows, self.padded_columns, self.traits, TYPE)

    @property
    def added_flops(self) -> int:
        """Operations of the added rows and columns; a multiplication and an addition are two."""
        more = self.padded_rows * self.padded_columns - self.rows * self.columns
        return 2 * self.count * self.depth * more

    @property
    def gains(self) -> bool:
        """Whether padding is expected to pay."""
        given, padded = (self.rows, self.columns), (self.padded_rows, self.padded_columns)
        return padded != given and self._cost(*padded) < LEAST_GAIN * self._cost(*given)

    def _cost(self, rows: int, columns: int) -> float:
        """Estimated time with so many rows and columns, in bytes that memory could move in it."""
        flops = 2 * self.count * rows * self.depth * columns
        lengths = ((self.rows, rows), (self.columns, columns))
        copies = [after * self.depth for before, after in lengths if after > before]
        if self.is_weighted:
            copies = []
        if (rows, columns) != (self.rows, self.columns):
            copies.append(self.rows * self.columns)
        moved = self.rows * self.depth + self.depth * self.columns + self.rows * self.columns
        size = FLOAT32_BYTES * self.count * (moved + 2 * _IN_CACHE * sum(copies))
        return cost_bytes(flops / self._speed(rows, columns), size, calls=1 + len(copies))

    def _speed(self, rows: int, columns: int) -> float:
        """Speed relative to the peak, by rule."""
        lanes = self.traits.lanes(TYPE)
        in_tile, elements = register_tile(rows, columns, self.traits, TYPE)
        speed = tile_rate(in_tile, elements, lanes, self.traits) / lanes
        return max(_NO_VECTOR, min(speed, 1.0 if in_tile > 1 else _ONE_ROW))


def legalizer(padding: Padding, traits: CpuTraits) -> dict[str, Legalizer]:
    """A legaliser that pads products where that pays, for `relax.transform.LegalizeOps`.

    Parameters
    ----------
    padding : Padding
        Records the padded products.
    traits : CpuTraits

    Returns
    -------
    legalizers : dict of callable
        By operator. TVM's own legaliser is called for all products, padded ones as well.
    """
    usual = tvm.ir.Op.get(_PRODUCT).get_attr("FLegalize")

    def legalized(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        product = product_of(call, traits)
        if product is None or not product.gains:
            return usual(builder, call)
        padding.chosen.append(product)
        given, columns = call.args[0], product.padded_columns
        if product.is_weighted:
            operands = [given, _wider(call.args[1], columns)]
        else:
            operands = [
                _padded(builder, given, -2, product.padded_rows),
                _padded(builder, call.args[1], -1, columns),
            ]
        whole = builder.normalize(relax.Call(call.op, operands, call.attrs))
        return without_padding(builder, usual(builder, whole), call)

    return {_PRODUCT: legalized}


def product_of(call: relax.Call, traits: CpuTraits) -> Product | None:
    """The product of a call; None if it cannot be padded.

    Parameters
    ----------
    call : relax.Call
        Of ``relax.matmul``.
    traits : CpuTraits
    """
    if any(str(each.ty.dtype) != TYPE for each in (*call.args, call)):
        return None
    if isinstance(call.args[0], tvm.ir.expr.GenericConst):
        return None
    first, second = ([int(extent) for extent in each.ty.shape] for each in call.args)
    if isinstance(call.args[1], tvm.ir.expr.GenericConst):
        if len(second) != _MATRIX or len(first) < _MATRIX:
            return None
        return Product(1, prod(first[:-1]), first[-1], second[-1], traits, is_weighted=True)
    is_plain = len(first) == len(second) > 1 and first[:-2] == second[:-2]
    if not is_plain:
        return None
    return Product(prod(first[:-2]), first[-2], first[-1], second[-1], traits)


def _wider(weights: relax.Expr, columns: int) -> relax.Expr:
    """Weights, padded with columns of zeros."""
    array = weights.value.numpy()
    return relax.const(np.pad(array, [(0, 0), (0, columns - array.shape[1])]))


def _padded(builder: relax.BlockBuilder, operand: relax.Expr, axis: int, extent: int) -> relax.Expr:
    """An operand, padded with zeros at the end of an axis."""
    shape = [int(each) for each in operand.ty.shape]
    if shape[axis] == extent:
        return operand
    wide = [*shape]
    wide[axis] = extent

    def filled_up(given: te.Tensor) -> te.Tensor:
        zero = tvm.tirx.const(0, TYPE)
        return te.compute(
            wide,
            lambda *at: tvm.tirx.if_then_else(at[axis] < shape[axis], given(*at), zero),
            name=_PADDED,
        )

    return builder.emit(injective(builder, filled_up, operand, _PADDED))

"""Convolutions and products of bytes: unsigned activations, signed constant weights, int32 sums.

Four channels are one word of 32 bits. Weights are packed into words here, once; an activation's
word is four neighbouring bytes as they lie. In words a convolution is one like any other, with the
operator of `fewtune.runtime.dot_products` for its multiplication: the same loops and rules tile it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fewtune.model.passes.pad_filters import Legalizer, without_padding
from fewtune.model.passes.winograd import filled
from fewtune.runtime import dot_products
from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.tvm import has_feature, relax, te, tvm

CONVOLUTION, PRODUCT, SUM = "relax.nn.conv2d", "relax.matmul", "relax.add"
OPERATORS = (CONVOLUTION, PRODUCT, SUM)
_DATA, _WEIGHTS, _SUMS = "uint8", "int8", "int32"
_BYTES = 4
# TVM's kinds of operators (OpPatternKind): what is fused with the elementwise operators behind it,
# and what is one of these (of a table its indices are a constant, as of a bias).
_OUT_ELEMENTWISE_FUSABLE, _ELEMENTWISE = 4, 0
_PLANE = 4


def legalizers(
    target: tvm.target.Target, traits: CpuTraits, usual: dict[str, Legalizer]
) -> dict[str, Legalizer]:
    """What `relax.transform.LegalizeOps` needs to know of products of bytes.

    Parameters
    ----------
    target : Target
        Of a CPU; its features say how four bytes are multiplied.
    traits : CpuTraits
    usual : dict of callable
        By operator, what legalises everything else.
    """
    form = dot_products.form_of(lambda feature: has_feature(target, feature))
    lanes = traits.lanes(_SUMS)

    def convolution(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        weights, attributes = _weights_of(call), call.attrs
        layouts = (str(attributes.data_layout), str(attributes.kernel_layout))
        if weights is None or layouts != ("NHWC", "HWIO"):
            return usual[CONVOLUTION](builder, call)
        groups, channels = int(attributes.groups), int(call.args[0].ty.shape[-1])
        window = _Window(attributes)
        if groups == 1:
            return _emit(
                builder,
                call,
                _packed(weights, lanes),
                lambda data, words: _convolved(form, data, words, window),
                "integer_conv2d",
            )
        if groups == channels == weights.shape[-1]:
            return _emit(
                builder,
                call,
                weights[:, :, 0].astype(_SUMS),
                lambda data, taps: _depthwise(data, taps, window),
                "integer_depthwise_conv2d",
            )
        return usual[CONVOLUTION](builder, call)

    def product(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        weights = _weights_of(call)
        if weights is None or weights.ndim != 2 or len(call.args[0].ty.shape) < 2:  # noqa: PLR2004
            return usual[PRODUCT](builder, call)
        return _emit(
            builder,
            call,
            _packed(weights, lanes),
            lambda data, words: _multiplied(form, data, words),
            "integer_matmul",
        )

    def summed(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        stored_once = _bordered(builder, call)
        return stored_once if stored_once is not None else usual[SUM](builder, call)

    return {CONVOLUTION: convolution, PRODUCT: product, SUM: summed}


class _Window:
    """Strides, dilations and padding of a convolution."""

    def __init__(self, attributes: Any) -> None:
        self.strides = [int(each) for each in attributes.strides]
        self.dilation = [int(each) for each in attributes.dilation]
        self.padding = [int(each) for each in attributes.padding]

    def size(self, axis: int, extent: int, taps: int) -> int:
        """Places of the output along an axis."""
        padded = extent + self.padding[axis] + self.padding[axis + 2]
        return (padded - (taps - 1) * self.dilation[axis] - 1) // self.strides[axis] + 1

    def place(self, axis: int, output: Any, tap: Any) -> Any:
        """Where an output's tap reads the padded input."""
        return output * self.strides[axis] + tap * self.dilation[axis]


def _weights_of(call: relax.Call) -> np.ndarray | None:
    """The constant weights of a product of bytes; None of any other product."""
    data, weights = call.args
    if not isinstance(weights, tvm.ir.expr.GenericConst) or str(call.ty.dtype) != _SUMS:
        return None
    if (str(data.ty.dtype), str(weights.value.dtype)) != (_DATA, _WEIGHTS):
        return None
    return weights.value.numpy()


def _packed(weights: np.ndarray, lanes: int) -> np.ndarray:
    """Four channels a word, and as many filters as fill vectors.

    Parameters
    ----------
    weights : numpy.ndarray
        int8, shape (..., channels, filters).
    lanes : int

    Returns
    -------
    words : numpy.ndarray
        int32, shape (..., words, filters); what is added is zero.
    """
    *others, channels, filters = weights.shape
    more = [(0, 0)] * len(others) + [(0, -channels % _BYTES), (0, -filters % lanes)]
    wide = np.pad(weights, more)
    grouped = wide.reshape(*others, -1, _BYTES, filled(filters, lanes))
    return np.ascontiguousarray(np.moveaxis(grouped, -2, -1)).view(np.int32)[..., 0]


def _emit(
    builder: relax.BlockBuilder, call: relax.Call, weights: np.ndarray, compute: Any, name: str
) -> relax.Expr:
    result = builder.call_te(
        compute,
        call.args[0],
        relax.const(weights),
        primfunc_name_hint=name,
        primfunc_attrs={"op_pattern": _OUT_ELEMENTWISE_FUSABLE},
    )
    if weights.shape[-1] == int(call.ty.shape[-1]):
        return result
    return without_padding(builder, result, call)


def _padded(data: te.Tensor, before: list[int], after: list[int]) -> te.Tensor:
    """The data with zeros around."""
    if not any(before) and not any(after):
        return data
    shape = [int(extent) for extent in data.shape]
    wide = [first + extent + last for first, extent, last in zip(before, shape, after, strict=True)]

    def at(*place: Any) -> Any:
        inside = []
        for where, first, extent, whole in zip(place, before, shape, wide, strict=True):
            if first:
                inside.append(where >= first)
            if first + extent < whole:
                inside.append(where < first + extent)
        moved = [where - first for where, first in zip(place, before, strict=True)]
        zero = tvm.tirx.const(0, _DATA)
        return tvm.tirx.if_then_else(tvm.tirx.all(*inside), data(*moved), zero)

    return te.compute(wide, at, name="padded_bytes")


def _word(data: te.Tensor, place: list[Any], word: Any) -> Any:
    """Four neighbouring bytes of the last axis as an int32: LLVM makes one load of them."""
    found = None
    for number in range(_BYTES):
        byte = data(*place, word * _BYTES + number).astype("uint32")
        shifted = byte if number == 0 else byte << tvm.tirx.const(8 * number, "uint32")
        found = shifted if found is None else found | shifted
    return tvm.tirx.reinterpret(_SUMS, found)


def _convolved(form: str, data: te.Tensor, weights: te.Tensor, window: _Window) -> te.Tensor:
    batch, height, width, channels = (int(extent) for extent in data.shape)
    rows, columns, words, filters = (int(extent) for extent in weights.shape)
    top, left, bottom, right = window.padding
    more = words * _BYTES - channels
    padded = _padded(data, [0, top, left, 0], [0, bottom, right, more])
    r = te.reduce_axis((0, rows), name="r")
    s = te.reduce_axis((0, columns), name="s")
    k = te.reduce_axis((0, words), name="k")

    def summed(n: Any, y: Any, x: Any, f: Any) -> Any:
        place = [n, window.place(0, y, r), window.place(1, x, s)]
        return te.sum(
            dot_products.dot4(form, _word(padded, place, k), weights[r, s, k, f]), axis=[r, s, k]
        )

    shape = (batch, window.size(0, height, rows), window.size(1, width, columns), filters)
    return te.compute(shape, summed, name="integer_conv2d")


def _depthwise(data: te.Tensor, weights: te.Tensor, window: _Window) -> te.Tensor:
    batch, height, width, channels = (int(extent) for extent in data.shape)
    rows, columns, _ = (int(extent) for extent in weights.shape)
    top, left, bottom, right = window.padding
    padded = _padded(data, [0, top, left, 0], [0, bottom, right, 0])
    r = te.reduce_axis((0, rows), name="r")
    s = te.reduce_axis((0, columns), name="s")

    def summed(n: Any, y: Any, x: Any, c: Any) -> Any:
        byte = padded[n, window.place(0, y, r), window.place(1, x, s), c]
        return te.sum(byte.astype(_SUMS) * weights[r, s, c], axis=[r, s])

    shape = (batch, window.size(0, height, rows), window.size(1, width, columns), channels)
    return te.compute(shape, summed, name="integer_depthwise_conv2d")


def _multiplied(form: str, data: te.Tensor, weights: te.Tensor) -> te.Tensor:
    *others, depth = (int(extent) for extent in data.shape)
    words, filters = (int(extent) for extent in weights.shape)
    none = [0] * len(others)
    padded = _padded(data, [*none, 0], [*none, words * _BYTES - depth])
    k = te.reduce_axis((0, words), name="k")

    def summed(*place: Any) -> Any:
        *row, column = place
        return te.sum(dot_products.dot4(form, _word(padded, row, k), weights[k, column]), axis=[k])

    return te.compute((*others, filters), summed, name="integer_matmul")


def _bordered(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr | None:
    """Add a constant that differs only at the borders of a plane, storing its middle once.

    What a zero point adds to a sum depends on which taps lie in the padding. Written out, that is
    four bytes for each output of one.
    """
    data, constant = call.args
    if not isinstance(constant, tvm.ir.expr.GenericConst) or str(data.ty.dtype) != _SUMS:
        return None
    values = constant.value.numpy()
    shape = [int(extent) for extent in data.ty.shape]
    if values.ndim != _PLANE or values.shape[1:] != tuple(shape[1:]):
        return None
    borders = [_border(values, axis) for axis in (1, 2)]
    for axis, (first, last) in zip((1, 2), borders, strict=True):
        extent = values.shape[axis]
        kept = [*range(first + 1), *range(extent - last, extent)]
        values = np.take(values, kept, axis)
    if values.size * 2 > math.prod(shape[1:]):
        return None

    def kind(place: Any, axis: int) -> Any:
        (first, last), extent = borders[axis - 1], shape[axis]
        found = place if first + 1 == extent else tvm.tirx.min(place, first)
        return tvm.tirx.max(found, place - (extent - last) + first + 1) if last else found

    def added(given: te.Tensor, table: te.Tensor) -> te.Tensor:
        return te.compute(
            shape,
            lambda n, y, x, c: given[n, y, x, c] + table[0, kind(y, 1), kind(x, 2), c],
            name="zero_points",
        )

    return builder.call_te(
        added,
        data,
        relax.const(np.ascontiguousarray(values)),
        primfunc_name_hint="zero_points",
        primfunc_attrs={"op_pattern": _ELEMENTWISE},
    )


def _border(values: np.ndarray, axis: int) -> tuple[int, int]:
    """How many places before and after the middle of an axis differ from it."""
    moved = np.moveaxis(values, axis, 0)
    first = last = len(moved) // 2
    middle = moved[first]
    while first > 0 and np.array_equal(moved[first - 1], middle):
        first -= 1
    while last + 1 < len(moved) and np.array_equal(moved[last + 1], middle):
        last += 1
    return first, len(moved) - 1 - last

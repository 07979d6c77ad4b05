"""Elementwise operators, gathers and products of bytes, made of operators with a layout rule.

``Clip``, ``LeakyRelu`` and the like become ``maximum`` and ``minimum``, with constants of the other
operand's rank. These have layout rules, and fuse into the convolution before them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fewtune.model.passes.relax_calls import text_attribute
from fewtune.runtime.tvm import relax, tvm
from fewtune.tvm_compat.values import array_of, is_constant, known_array

# By ONNX's number of a type, or its name for a CastLike.
_INTEGERS = {6: "int32", 7: "int64", "int32": "int32", "int64": "int64"}
# The least and the largest value of ONNX's byte types.
_BYTES = dict.fromkeys((2, "uint8"), (0, 255)) | dict.fromkeys((3, "int8"), (-128, 127))


def index_of(
    operator: Any, bb: Any, inputs: list[Any], attributes: dict[str, Any], _opset: int
) -> relax.Expr | None:
    """The index of the largest or least element; of the first or the last, if several are equal.

    TVM's reduction starts from index -1 and the lowest number of the type. If all numbers of a row
    are the lowest, such as bytes of 0, the result is -1. Here it is at least 0.
    """
    (data,) = inputs
    if not isinstance(data, relax.Expr) or data.ty.shape is None:
        return None
    axis = int(attributes.get("axis", 0)) % data.ty.ndim
    extent = data.ty.shape[axis]
    if not isinstance(extent, tvm.tirx.IntImm):
        return None
    is_last = bool(attributes.get("select_last_index", 0))
    if is_last:
        data = bb.normalize(relax.op.flip(data, axis=axis))
    found = bb.normalize(operator(data, axis, bool(attributes.get("keepdims", 1))))
    found = bb.normalize(relax.op.maximum(found, relax.const(0, "int64")))
    return relax.op.subtract(relax.const(int(extent) - 1, "int64"), found) if is_last else found


def bit_shift(
    bb: Any, inputs: list[Any], attributes: dict[str, Any], _opset: int
) -> relax.Expr | None:
    """A shift; by the width of the type and more it leaves nothing, where processors wrap."""
    data, count = inputs
    if not isinstance(data, relax.Expr) or not isinstance(count, relax.Expr):
        return None
    dtype = str(data.ty.dtype)
    is_left = text_attribute(attributes, "direction", "") == "LEFT"
    shifted = bb.normalize((relax.op.left_shift if is_left else relax.op.right_shift)(data, count))
    width = relax.const(np.iinfo(dtype).bits, dtype)
    is_within = bb.normalize(relax.op.less(count, width))
    return relax.op.where(is_within, shifted, relax.const(0, dtype))


def cast(bb: Any, inputs: list[Any], attributes: dict[str, Any], _opset: int) -> relax.Expr | None:
    """Cast floats to integers by the processor's instruction; TVM's own cast checks each number.

    Bytes are cast so only if bounds show that the numbers fit.
    """
    (data,) = inputs
    wanted = _INTEGERS.get(attributes["to"])
    if not _is_float(data):
        return None
    if wanted is not None:
        return relax.op.astype(data, wanted)
    limits = _BYTES.get(attributes["to"])
    if limits is None:
        return None
    for operator, limit, fits in (
        ("relax.minimum", limits[1], np.less_equal),
        ("relax.maximum", limits[0], np.greater_equal),
    ):
        call = bb.lookup_binding(data) if isinstance(data, relax.Var) else data
        if not isinstance(call, relax.Call) or getattr(call.op, "name", "") != operator:
            return None
        data, bound = call.args
        if not is_constant(bound) or not np.all(fits(known_array(bound), limit)):
            return None
    return relax.op.astype(inputs[0], "uint8" if limits[0] == 0 else "int8")


def clip(bb: Any, inputs: list[Any], attributes: dict[str, Any], opset: int) -> relax.Expr | None:
    """Clip by constants: the inputs, or before operator set 11 the attributes."""
    if opset < 11:
        return _clipped(bb, inputs[0], attributes.get("min"), attributes.get("max"))
    bounds: list[float | None] = []
    for bound in [*inputs[1:], None, None][:2]:
        if bound is not None and not is_constant(bound):
            return None
        # Some exporters write it with an axis.
        number = None if bound is None else float(known_array(bound).reshape(()))
        # A bound of NaN is no bound (ONNX): TVM's own converter knows that.
        if number is not None and np.isnan(number):
            return None
        bounds.append(number)
    return _clipped(bb, inputs[0], *bounds)


def paired(
    operator: Any, _bb: Any, inputs: list[Any], _attributes: dict[str, Any], _opset: int
) -> relax.Expr | None:
    """Max or Min of two; `rewrites.chain_variadic` has split those of more."""
    if len(inputs) != 2 or all(map(is_constant, inputs)):
        return None
    return operator(*inputs)


def gather(
    _bb: Any, inputs: list[Any], attributes: dict[str, Any], _opset: int
) -> relax.Expr | None:
    """Gather by constant indices; TVM's own converter handles negative ones at run time."""
    data, indices = inputs
    if not is_constant(indices) or is_constant(data) or isinstance(data, relax.ShapeExpr):
        return None
    axis = attributes.get("axis", 0)
    extent = data.ty.shape[axis] if data.ty.shape is not None else None
    places = known_array(indices)
    if not isinstance(extent, tvm.tirx.IntImm) or places.ndim == 0:
        return None
    places = np.where(places < 0, places + int(extent), places)
    return relax.op.take(data, relax.const(places, str(places.dtype)), axis, mode="clip")


def leaky_relu(
    bb: Any, inputs: list[Any], attributes: dict[str, Any], _opset: int
) -> relax.Expr | None:
    """The larger one of a number and its product with the slope."""
    (data,) = inputs
    slope = float(attributes.get("alpha", 0.01))
    # Infinity times a slope of 0 is NaN; with a slope above 1 it is the smaller one.
    if not _is_float(data) or not 0 < slope <= 1:
        return None
    below = bb.normalize(relax.op.multiply(data, _constant_like(data, slope)))
    return relax.op.maximum(data, below)


def hard_sigmoid(
    bb: Any, inputs: list[Any], attributes: dict[str, Any], _opset: int
) -> relax.Expr | None:
    """A line, clipped to between 0 and 1."""
    (data,) = inputs
    if not _is_float(data):
        return None
    slope, shift = float(attributes.get("alpha", 0.2)), float(attributes.get("beta", 0.5))
    scaled = bb.normalize(relax.op.multiply(data, _constant_like(data, slope)))
    return _clipped(bb, bb.normalize(relax.op.add(scaled, _constant_like(data, shift))), 0.0, 1.0)


def _clipped(
    bb: Any, data: relax.Expr, least: float | None, most: float | None
) -> relax.Expr | None:
    if not _is_float(data):
        return None
    # A missing bound is the least or the largest finite number (ONNX), so infinities are clipped.
    limits = np.finfo(str(data.ty.dtype))
    least = float(limits.min) if least is None else least
    most = float(limits.max) if most is None else most
    if least != -np.inf:
        data = bb.normalize(relax.op.maximum(data, _constant_like(data, least)))
    if most != np.inf:
        data = bb.normalize(relax.op.minimum(data, _constant_like(data, most)))
    return data


def _constant_like(data: relax.Expr, value: float) -> relax.Expr:
    """A constant with the rank of ``data``, which the layout conversion needs."""
    dtype = str(data.ty.dtype)
    return relax.const(np.full((1,) * data.ty.ndim, value, dtype), dtype)


def _is_float(data: Any) -> bool:
    """Whether an input is an expression of floats whose rank is known."""
    is_float = isinstance(data, relax.Expr) and str(data.ty.dtype).startswith("float")
    return is_float and data.ty.ndim >= 0


def integer_convolution(
    bb: Any, inputs: list[Any], attributes: dict[str, Any], _opset: int
) -> relax.Expr:
    """Convert a ConvInteger, as `fewtune.onnx_graph.quantized` writes it."""
    return relax.op.nn.conv2d(
        _centered(bb, inputs),
        inputs[1],
        strides=attributes.get("strides", 1),
        padding=attributes.get("pads", 0),
        dilation=attributes.get("dilations", 1),
        groups=attributes.get("group", 1),
        out_dtype="int32",
    )


def integer_product(
    bb: Any, inputs: list[Any], _attributes: dict[str, Any], _opset: int
) -> relax.Expr:
    """Convert a MatMulInteger, as `fewtune.onnx_graph.quantized` writes it."""
    return relax.op.matmul(_centered(bb, inputs), inputs[1], out_dtype="int32")


def _centered(bb: Any, inputs: list[Any]) -> relax.Expr:
    """The data minus a constant zero point, if there is one."""
    data, _, zero, weight_zero = [*inputs, None, None][:4]
    if zero is None and weight_zero is None:
        return data
    number = array_of(zero)
    if weight_zero is not None or number is None:
        raise ValueError("its zero points are not known")
    place = np.full((1,) * data.ty.ndim, int(number.reshape(())), np.int16)
    wide = bb.normalize(relax.op.astype(data, "int16"))
    return bb.normalize(relax.op.subtract(wide, relax.const(place, "int16")))

"""Convolutions and products of bytes, as `fewtune.onnx_graph.quantized` writes them."""

from __future__ import annotations

from typing import Any

import numpy as np

from fewtune.runtime.tvm import relax
from fewtune.tvm_compat.constants import array_of


def convolution(bb: Any, inputs: list[Any], attributes: dict[str, Any], _opset: int) -> relax.Expr:
    """Convert a ConvInteger."""
    return relax.op.nn.conv2d(
        _centered(bb, inputs),
        inputs[1],
        strides=attributes.get("strides", 1),
        padding=attributes.get("pads", 0),
        dilation=attributes.get("dilations", 1),
        groups=attributes.get("group", 1),
        data_layout="NCHW",
        kernel_layout="OIHW",
        out_dtype="int32",
    )


def product(bb: Any, inputs: list[Any], _attributes: dict[str, Any], _opset: int) -> relax.Expr:
    """Convert a MatMulInteger."""
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

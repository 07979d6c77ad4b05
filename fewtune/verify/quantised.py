"""Intermediate values of a quantised model that can be outputs without changing its results."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto

from fewtune.verify.operator_kinds import QUANTISED

_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
_HIGH_BIT = np.uint8(128)
# Most operators between two quantisations that onnxruntime fuses to one, such as Conv and Relu.
_MOST_FUSED = 3


def is_quantised(model: ModelProto) -> bool:
    """Whether a model has quantised values, with constant or dynamic scales."""
    return any(node.op_type in QUANTISED for node in model.graph.node)


def safe_outputs(model: ModelProto) -> list[str]:
    """Values that can be outputs while onnxruntime still computes in integers.

    If the floats between a dequantisation and a quantisation are outputs, onnxruntime computes in
    floats, which round otherwise: twenty layers later, a tenth of all bytes differ.
    """
    producers = {name: node for node in model.graph.node for name in node.output}
    hidden: set[str] = set()
    for node in model.graph.node:
        if node.op_type == _DEQUANTIZE:
            hidden.update(node.output)
        names = list(node.input[:1]) if node.op_type == _QUANTIZE else []
        for _ in range(_MOST_FUSED):
            fused = [producers[name] for name in names if name in producers]
            fused = [each for each in fused if each.op_type not in QUANTISED]
            hidden.update(name for each in fused for name in each.output)
            names = [name for each in fused for name in each.input]
    return [name for node in model.graph.node for name in node.output if name not in hidden]


def as_unsigned(values: np.ndarray) -> np.ndarray:
    """Signed bytes as unsigned ones, 128 larger, as `fewtune.onnx_graph.quantized` stores them."""
    return values.view(np.uint8) ^ _HIGH_BIT


def as_signed(values: np.ndarray) -> np.ndarray:
    """Inverse of `as_unsigned`."""
    return (values ^ _HIGH_BIT).view(np.int8)

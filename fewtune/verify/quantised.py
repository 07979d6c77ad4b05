"""Values inside a quantised model that can be looked at without changing what it computes."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto

from fewtune.verify.operator_kinds import QUANTISED

_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
_HIGH_BIT = np.uint8(128)
# Operators between two quantisations that onnxruntime makes one of: Conv, Relu and the like.
_MOST_FUSED = 3


def is_quantised(model: ModelProto) -> bool:
    """Whether values are quantised, with constant scales or with those that a run finds."""
    return any(node.op_type in QUANTISED for node in model.graph.node)


def safe_outputs(model: ModelProto) -> list[str]:
    """Values that can be outputs, and onnxruntime still computes the others with whole numbers.

    Where the floats between a dequantisation and a quantisation are asked for, it computes in
    floats, which takes other steps: a tenth of all bytes is another one twenty layers later.
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
    """Signed bytes as `fewtune.onnx_graph.integers` computes them: unsigned, 128 larger."""
    return values.view(np.uint8) ^ _HIGH_BIT


def as_signed(values: np.ndarray) -> np.ndarray:
    """What `as_unsigned` was given."""
    return (values ^ _HIGH_BIT).view(np.int8)

"""Rewrites a quantised graph in integers: the operators between two quantisations fuse to a kernel.

One pass over the graph represents each float tensor by integers (`affine`), and writes its floats
only if an operator needs them. A convolution or product of dequantised bytes becomes
``ConvInteger`` or ``MatMulInteger`` of unsigned activations and signed weights. Scales and biases
follow as elementwise operators, which TVM fuses into it. Maxima, copies and views apply to the
bytes. All other operators stay in floats.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import ModelProto, NodeProto

from fewtune.onnx_graph.graph import STANDARD, names_read
from fewtune.onnx_graph.integers import elementwise, products, qlinear, quantisation
from fewtune.onnx_graph.integers.walk import DEQUANTIZE, QUANTIZE, Walk
from fewtune.onnx_graph.operators.builder import MICROSOFT
from fewtune.onnx_graph.operators.quantized.products import HANDLERS as IN_FLOATS

_INTEGER_OPERATORS = ("ConvInteger", "MatMulInteger")
# A model without any of these is not quantised.
_QUANTISED = frozenset(
    {QUANTIZE, DEQUANTIZE, "QLinearConv", "QLinearMatMul", "QGemm", *_INTEGER_OPERATORS}
)
# Operators that move elements of their first input, or take the largest.
_MOVERS = ("MaxPool", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Identity")
_MOVERS += ("Slice", "Split", "DepthToSpace", "SpaceToDepth")
_HANDLERS: dict[tuple[str, str], Callable[[Walk, NodeProto], bool]] = {
    ("", DEQUANTIZE): quantisation.dequantize,
    ("", QUANTIZE): quantisation.quantize,
    (MICROSOFT, DEQUANTIZE): quantisation.dequantize,
    (MICROSOFT, QUANTIZE): quantisation.quantize,
    ("", "Conv"): products.convolution,
    ("", "MatMul"): products.product,
    ("", "Gemm"): products.dense,
    ("", "MatMulInteger"): products.integer_product,
    ("", "ConvInteger"): products.integer_convolution,
    ("", "Relu"): lambda walk, node: elementwise.bounded(walk, node, 0.0, np.inf),
    ("", "Clip"): elementwise.clip,
    ("", "Add"): elementwise.added,
    ("", "Sum"): elementwise.added,
    ("", "Concat"): elementwise.concatenation,
    ("", "AveragePool"): elementwise.average,
    ("", "GlobalAveragePool"): elementwise.average,
    ("", "ReduceMean"): elementwise.average,
    ("", "Resize"): elementwise.resize,
    ("", "QLinearConv"): qlinear.qlinear_convolution,
    ("", "QLinearMatMul"): qlinear.qlinear_product,
    (MICROSOFT, "QGemm"): qlinear.qlinear_dense,
    (MICROSOFT, "QLinearAdd"): qlinear.qlinear_sum,
    (MICROSOFT, "QLinearGlobalAveragePool"): qlinear.qlinear_average,
    (MICROSOFT, "QLinearConcat"): qlinear.qlinear_concatenation,
    **{("", name): elementwise.moved for name in _MOVERS},
}


def to_integers(model: ModelProto) -> ModelProto:
    """Rewrite a quantised model's products into integers.

    Parameters
    ----------
    model : ModelProto
        With static and inferred shapes, of operator set 11 or later; it is left as it is.

    Returns
    -------
    model : ModelProto
        Same inputs and outputs, equal up to the last rounding; the model itself if it is not
        quantised. All ``ConvInteger`` and ``MatMulInteger`` in it have unsigned data with a
        constant zero point or none, and signed constant weights.
    """
    if not any(node.op_type in _QUANTISED for node in model.graph.node):
        return model
    walk = Walk(model)
    for node in model.graph.node:
        _visit(walk, node)
    for value in model.graph.output:
        walk.write(value.name)
    return walk.graph.model()


def _visit(walk: Walk, node: NodeProto) -> None:
    """Write a node in integers if possible, otherwise as it is."""
    domain = "" if node.domain in STANDARD else node.domain
    handler = _HANDLERS.get((domain, node.op_type))
    if handler is not None and handler(walk, node):
        return
    for name in names_read(node):
        walk.write(name)
    if domain == "" and node.op_type in _INTEGER_OPERATORS:
        IN_FLOATS["", node.op_type](walk.graph, node, {})
    else:
        walk.graph.add(node, {})

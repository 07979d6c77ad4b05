"""Normalizes quantized operators to dequantization, the operator in floats, and quantization.

ONNX's ``QLinear`` operators and onnxruntime's own (domain com.microsoft) become this one form,
which `fewtune.onnx_graph.quantized.lift` computes in integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from onnx import NodeProto, TensorProto, helper

from fewtune.onnx_graph.graph import attributes_of, optional
from fewtune.onnx_graph.operators.builder import MICROSOFT, GraphBuilder, Handler, Scope

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
DYNAMIC = "DynamicQuantizeLinear"


def _dequantized(graph: GraphBuilder, names: Sequence[str], axis: int | None = None) -> str:
    """Add a ``DequantizeLinear`` of data, scale and zero point."""
    name, shape = graph.fresh(f"{names[0]}_float"), graph.shape(names[0])
    if shape is not None:
        # ONNX's inference may not know this form in an older operator set.
        graph.declare(name, TensorProto.FLOAT, shape)
    return graph.op(DEQUANTIZE, [each for each in names if each], name, axis=axis)


def _quantized(
    graph: GraphBuilder, node: NodeProto, data: str, scale: str, zero: str, like: str
) -> bool:
    """Add a ``QuantizeLinear`` that writes a node's output, of the type of ``like`` by default."""
    if not zero:
        zero = graph.constant(0, graph.dtype(like))
    graph.op(QUANTIZE, [data, scale, zero], node.output[0])
    return True


def _bias(graph: GraphBuilder, bias: str, *scales: str) -> list[str]:
    """A bias in units of the sums, dequantized; nothing if there is none."""
    scale = scales[0]
    for each in scales[1:]:
        scale = graph.fold("Mul", [scale, each])
    return [_dequantized(graph, [bias, scale], axis=0)] if bias else []


def _quantized_operator(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """An operator of `_FORMS`, applied to floats between dequantization and quantization."""
    operator, given = node.op_type.removeprefix("QLinear"), attributes_of(node)
    form, names = _FORMS[operator], optional(node.input, 9)
    if given.pop("channels_last", 0):
        return graph.refuse(node, "has its channels last, as onnxruntime's optimizer writes it")
    given.pop("opset", None)
    operands = [_dequantized(graph, names[at : at + 3], axis) for at, axis in form.operands.items()]
    inputs = [*names[: min(form.operands)], *operands]
    if operator == "Conv":
        inputs += _bias(graph, names[8], names[1], names[4])
    elif operator == "Softmax":
        given.setdefault("axis", -1)
    result = graph.op(operator, inputs, **given)
    scale, zero = names[form.result : form.result + 2]
    return _quantized(graph, node, result, scale, zero, names[min(form.operands)])


def _gemm(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    names, given = optional(node.input, 9), attributes_of(node)
    columns = 0 if given.get("transB") else 1
    alpha = graph.constant(given.get("alpha", 1.0), np.float32)
    inputs = [_dequantized(graph, names[:3]), _dequantized(graph, names[3:6], axis=columns)]
    inputs += _bias(graph, names[6], names[1], names[4], alpha)
    if not names[7]:
        graph.op("Gemm", inputs, node.output[0], **given)
        return True
    return _quantized(graph, node, graph.op("Gemm", inputs, **given), *names[7:9], names[0])


def _concat(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    scale, zero, *others = node.input
    parts = [_dequantized(graph, others[begin : begin + 3]) for begin in range(0, len(others), 3)]
    joined = graph.op("Concat", parts, axis=attributes_of(node)["axis"])
    return _quantized(graph, node, joined, scale, zero, others[0])


def _attention(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """QAttention as onnxruntime's Attention in floats."""
    data, weight, bias, scale, weight_scale, mask, zero, weight_zero, past = optional(node.input, 9)
    inputs = [
        _dequantized(graph, [data, scale, zero]),
        _dequantized(graph, [weight, weight_scale, weight_zero], axis=1),
        *(bias, mask, past),
    ]
    plain = helper.make_node("Attention", inputs, node.output, node.name, domain=MICROSOFT)
    plain.attribute.extend(node.attribute)
    graph.add(plain, scope)
    return True


def _standard(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Onnxruntime's spelling of ONNX's own operators."""
    graph.op(node.op_type, node.input, node.output[0], **attributes_of(node))
    return True


class _Form(NamedTuple):
    """Where a ``QLinear`` operator has its inputs.

    ``operands`` gives the axis of the scales by the place of an operand's data; scale and zero
    point follow. At ``result`` are those of the output. What precedes the operands is not
    quantized.
    """

    operands: dict[int, int | None]
    result: int


_ONE, _TWO = _Form({0: None}, 3), _Form({0: None, 3: None}, 6)
_FORMS = {
    **dict.fromkeys(("AveragePool", "GlobalAveragePool", "LeakyRelu", "Sigmoid", "Softmax"), _ONE),
    **dict.fromkeys(("Add", "Mul"), _TWO),
    "Conv": _Form({0: None, 3: 0}, 6),
    "MatMul": _Form({0: -2, 3: -1}, 6),
    "Where": _Form({1: None, 4: None}, 7),
}
HANDLERS: dict[str, Handler] = {
    **{f"{MICROSOFT}.QLinear{name}": _quantized_operator for name in _FORMS},
    **{f"QLinear{name}": _quantized_operator for name in ("Conv", "MatMul")},
    f"{MICROSOFT}.{QUANTIZE}": _standard,
    f"{MICROSOFT}.{DEQUANTIZE}": _standard,
    f"{MICROSOFT}.QGemm": _gemm,
    f"{MICROSOFT}.QLinearConcat": _concat,
    f"{MICROSOFT}.QAttention": _attention,
}

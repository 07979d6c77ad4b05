"""Operators that onnxruntime's optimiser fuses: with activations, or into layer norms."""

from __future__ import annotations

import math

import numpy as np
from onnx import NodeProto, TensorProto

from fewtune.onnx_graph.graph import attributes_of, optional
from fewtune.onnx_graph.operators.activations import activation
from fewtune.onnx_graph.operators.builder import MICROSOFT, GraphBuilder, Handler, Scope

LAYER_NORM = 17


def _fused_conv(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    given = attributes_of(node)
    name = given.pop("activation", b"").decode()
    parameters = list(given.pop("activation_params", []))
    data, weight, bias, added = optional(node.input, 4)
    function = activation(name, parameters[:1], parameters[1:]) if name else None
    if name.lower() == "clip" and len(parameters) == 2:
        function = _bounded(*parameters)
    if name and function is None:
        return graph.refuse(node, f"has an activation that is not known: {name}")
    inputs = [data, weight, *([bias] if bias else [])]
    last = None if function or added else node.output[0]
    result = graph.op("Conv", inputs, last, **given)
    if added:
        result = graph.op("Add", [result, added], None if function else node.output[0])
    if function:
        graph.op("Identity", [function(graph, result)], node.output[0])
    return True


def _bounded(least: float, most: float) -> object:
    return lambda graph, data: graph.clip(data, least, most)


def _fused_gemm(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    given = attributes_of(node)
    name = given.pop("activation", b"").decode()
    alphas, betas = (
        [given.pop(f"activation_{p}")] if f"activation_{p}" in given else []
        for p in ("alpha", "beta")
    )
    given.pop("activation_gamma", None)
    function = activation(name, alphas, betas)
    if function is None:
        return graph.refuse(node, f"has an activation that is not known: {name}")
    result = graph.op("Gemm", [each for each in node.input if each], **given)
    graph.op("Identity", [function(graph, result)], node.output[0])
    return True


def _fused_matmul(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    given = attributes_of(node)
    operands = []
    for name, side in zip(node.input[:2], "AB", strict=True):
        shape = graph.shape(name)
        if shape is None:
            return graph.refuse(node, "reads a tensor whose shape is not known")
        order = list(range(len(shape)))
        if given.get(f"transBatch{side}") and len(shape) > 2:
            order = [*order[1:-1], order[0], order[-1]]
        if given.get(f"trans{side}") and len(shape) > 1:
            order[-2:] = order[:-3:-1]
        operands.append(
            name if order == sorted(order) else graph.fold("Transpose", [name], perm=order)
        )
    alpha = given.get("alpha", 1.0)
    if alpha == 1.0:
        graph.op("MatMul", operands, node.output[0])
        return True
    product = graph.op("MatMul", operands)
    graph.op("Mul", [product, graph.constant(alpha, graph.dtype(product))], node.output[0])
    return True


def _gelu(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Gelu, and BiasGelu, which adds a vector first."""
    data, bias = optional(node.input, 2)
    if bias:
        data = graph.op("Add", [data, bias])
    _add_gelu(
        graph,
        data,
        "Erf",
        graph.op("Mul", [data, _number(graph, data, math.sqrt(0.5))]),
        node.output[0],
    )
    return True


def _fast_gelu(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    data, bias = optional(node.input, 2)
    if bias:
        data = graph.op("Add", [data, bias])
    square = graph.op("Mul", [data, data])
    factor = math.sqrt(2 / math.pi)
    inner = graph.op("Mul", [square, _number(graph, data, factor * 0.044715)])
    inner = graph.op("Add", [inner, _number(graph, data, factor)])
    _add_gelu(graph, data, "Tanh", graph.op("Mul", [data, inner]), node.output[0])
    return True


def _add_gelu(graph: GraphBuilder, data: str, operator: str, inner: str, output: str) -> None:
    half = graph.op("Mul", [data, _number(graph, data, 0.5)])
    gate = graph.op("Add", [graph.op(operator, [inner]), _number(graph, data, 1.0)])
    graph.op("Mul", [half, gate], output)


def _quick_gelu(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    (data,) = node.input
    alpha = _number(graph, data, attributes_of(node).get("alpha", 1.702))
    gate = graph.op("Sigmoid", [graph.op("Mul", [data, alpha])])
    graph.op("Mul", [data, gate], node.output[0])
    return True


def _number(graph: GraphBuilder, data: str, value: float) -> str:
    return graph.constant(value, graph.dtype(data))


def normalized(
    graph: GraphBuilder,
    data: str,
    scale: str,
    bias: str,
    epsilon: float,
    output: str,
    centred: bool = True,
) -> None:
    """Normalise over the last axis: layer normalisation, or RMS normalisation if not centred."""
    axis = len(graph.shape(data)) - 1
    if centred and graph.opset >= LAYER_NORM:
        inputs = [data, scale, *([bias] if bias else [])]
        graph.op("LayerNormalization", inputs, output, axis=axis, epsilon=epsilon)
        return
    if centred:
        data = graph.op("Sub", [data, graph.reduce("ReduceMean", data, [axis])])
    square = graph.reduce("ReduceMean", graph.op("Mul", [data, data]), [axis])
    deviation = graph.op("Sqrt", [graph.op("Add", [square, _number(graph, data, epsilon)])])
    result = graph.op("Div", [data, deviation])
    result = graph.op("Mul", [result, scale], None if bias else output)
    if bias:
        graph.op("Add", [result, bias], output)


def _skip_layer_norm(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    centred = "Simplified" not in node.op_type
    data, skip, scale, *others = optional(node.input, 5)
    shift, bias = others if centred else ("", others[0])
    output, mean, deviation, total = optional(node.output, 4)
    if graph.shape(data) is None or mean or deviation:
        return graph.refuse(node, "has outputs of training, or an input of unknown shape")
    if bias:
        data = graph.op("Add", [data, bias])
    data = graph.op("Add", [data, skip], total or None)
    epsilon = attributes_of(node).get("epsilon", 1e-12)
    normalized(graph, data, scale, shift, epsilon, output, centred)
    return True


def _rms_norm(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    given, shape = attributes_of(node), graph.shape(node.input[0])
    last = shape is not None and given.get("axis", -1) in (-1, len(shape) - 1)
    if not last or any(node.output[1:]):
        return graph.refuse(node, "normalises over more than the last axis, or has two outputs")
    data, scale = node.input
    normalized(graph, data, scale, "", given.get("epsilon", 1e-5), node.output[0], centred=False)
    return True


def _embed_layer_norm(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    tokens, segments, words, places, kinds, scale, shift, mask, numbers = optional(node.input, 9)
    output, lengths, total = optional(node.output, 3)
    shape = graph.shape(tokens)
    if shape is None:
        return graph.refuse(node, "reads tokens whose shape is not known before the model runs")
    found = graph.op("Gather", [words, tokens], axis=0)
    if numbers:
        place = graph.op("Gather", [places, numbers], axis=0)
    else:
        place = graph.fold_slice(places, 0, 0, shape[1])
    data = graph.op("Add", [found, place], None if segments else (total or None))
    if segments:
        kind = graph.op("Gather", [kinds, segments], axis=0)
        data = graph.op("Add", [data, kind], total or None)
    normalized(graph, data, scale, shift, attributes_of(node).get("epsilon", 1e-12), output)
    if lengths and mask:
        graph.reduce("ReduceSum", graph.cast(mask, TensorProto.INT32), [1], 0, lengths)
    elif lengths:
        zeros = graph.constant(np.zeros(shape[0], np.int32))
        graph.op("Identity", [zeros], lengths)
    return True


HANDLERS: dict[tuple[str, str], Handler] = {
    (MICROSOFT, "FusedConv"): _fused_conv,
    (MICROSOFT, "FusedGemm"): _fused_gemm,
    (MICROSOFT, "FusedMatMul"): _fused_matmul,
    (MICROSOFT, "TransposeMatMul"): _fused_matmul,
    (MICROSOFT, "Gelu"): _gelu,
    (MICROSOFT, "BiasGelu"): _gelu,
    (MICROSOFT, "FastGelu"): _fast_gelu,
    (MICROSOFT, "QuickGelu"): _quick_gelu,
    (MICROSOFT, "SkipLayerNormalization"): _skip_layer_norm,
    (MICROSOFT, "SkipSimplifiedLayerNormalization"): _skip_layer_norm,
    (MICROSOFT, "SimplifiedLayerNormalization"): _rms_norm,
    ("", "SimplifiedLayerNormalization"): _rms_norm,
    (MICROSOFT, "EmbedLayerNormalization"): _embed_layer_norm,
}

"""Normalisations in forms that TVM's importer lacks: further outputs, all axes, norms."""

from __future__ import annotations

import numpy as np
from onnx import NodeProto, TensorProto

from fewtune.onnx_graph.graph import attributes_of, optional
from fewtune.onnx_graph.operators.builder import GraphBuilder, Handler, Scope
from fewtune.onnx_graph.operators.fused import LAYER_NORM

# ONNX's default, rounded to float32 as attributes are.
EPSILON = float(np.float32(1e-5))


def _layer(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Layer normalisation with outputs of mean and deviation, or of doubles, which TVM lacks.

    Nodes in older operator sets, which onnxruntime's optimiser writes, are expanded as well.
    """
    data, shape = node.input[0], graph.shape(node.input[0])
    kind = graph.element_type(data)
    is_written = kind == TensorProto.DOUBLE or graph.opset < LAYER_NORM
    if shape is None or not (is_written or any(node.output[1:])):
        return False
    given = attributes_of(node)
    axis, epsilon = given.get("axis", -1), given.get("epsilon", EPSILON)
    if not is_written:
        graph.op("LayerNormalization", list(node.input), node.output[0], axis=axis, epsilon=epsilon)
    if kind != TensorProto.DOUBLE:
        data = graph.cast(data, given.get("stash_type", TensorProto.FLOAT))
    axes = list(range(axis % len(shape), len(shape)))
    mean, inverse = optional(node.output[1:], 2)
    mean = graph.reduce("ReduceMean", data, axes, output=mean or None)
    apart = graph.op("Sub", [data, mean])
    variance = graph.reduce("ReduceMean", graph.op("Mul", [apart, apart]), axes)
    deviation = graph.op("Sqrt", [_plus(graph, variance, epsilon)])
    if is_written:
        scale, *bias = [name for name in node.input[1:] if name]
        normal = graph.cast(graph.op("Div", [apart, deviation]), kind)
        scaled = graph.op("Mul", [normal, scale], None if bias else node.output[0])
        if bias:
            graph.op("Add", [scaled, bias[0]], node.output[0])
    if inverse:
        graph.op("Reciprocal", [deviation], inverse)
    return True


def _root_mean_square(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """RMS normalisation over all axes, for which TVM has no kernel."""
    shape, given = graph.shape(node.input[0]), attributes_of(node)
    if shape is None or given.get("axis", -1) % len(shape) != 0:
        return False
    data = graph.cast(node.input[0], given.get("stash_type", TensorProto.FLOAT))
    axes = list(range(len(shape)))
    mean = graph.reduce("ReduceMean", graph.op("Mul", [data, data]), axes)
    root = graph.op("Sqrt", [_plus(graph, mean, given.get("epsilon", EPSILON))])
    scaled = graph.cast(graph.op("Div", [data, root]), graph.element_type(node.input[0]))
    graph.op("Mul", [scaled, node.input[1]], node.output[0])
    return True


def _by_norm(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Divide by the norm along an axis; zeros stay zero, as in onnxruntime."""
    given, data = attributes_of(node), node.input[0]
    kind = "ReduceL1" if given.get("p", 2) == 1 else "ReduceL2"
    norm = graph.reduce(kind, data, [given.get("axis", -1)])
    zero = graph.constant(0, graph.dtype(data))
    # A norm is also zero if the squares underflow.
    is_zero = graph.op("Equal", [norm, zero])
    graph.op("Where", [is_zero, zero, graph.op("Div", [data, norm])], node.output[0])
    return True


def _mean_and_variance(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    axes = list(attributes_of(node).get("axes", (0, 2, 3)))
    data = node.input[0]
    apart = graph.op("Sub", [data, graph.reduce("ReduceMean", data, axes)])
    variance = graph.reduce("ReduceMean", graph.op("Mul", [apart, apart]), axes)
    deviation = _plus(graph, graph.op("Sqrt", [variance]), 1e-9)
    graph.op("Div", [apart, deviation], node.output[0])
    return True


def _swish(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    data, alpha = node.input[0], attributes_of(node).get("alpha", 1.0)
    scaled = data
    if alpha != 1:
        scaled = graph.op("Mul", [data, graph.constant(alpha, graph.dtype(data))])
    graph.op("Mul", [data, graph.op("Sigmoid", [scaled])], node.output[0])
    return True


def _plus(graph: GraphBuilder, data: str, number: float) -> str:
    return graph.op("Add", [data, graph.constant(number, graph.dtype(data))])


HANDLERS: dict[tuple[str, str], Handler] = {
    ("", "LayerNormalization"): _layer,
    ("", "RMSNormalization"): _root_mean_square,
    ("", "LpNormalization"): _by_norm,
    ("", "MeanVarianceNormalization"): _mean_and_variance,
    ("", "Swish"): _swish,
}

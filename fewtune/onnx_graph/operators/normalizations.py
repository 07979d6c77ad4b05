"""Normalisations that TVM's importer lacks, and those that onnxruntime's optimiser fuses."""

from __future__ import annotations

import numpy as np
from onnx import NodeProto, TensorProto

from fewtune.onnx_graph.graph import attributes_of, optional
from fewtune.onnx_graph.operators.builder import MICROSOFT, GraphBuilder, Handler, Scope

# ONNX's default, rounded to float32 as attributes are.
EPSILON = float(np.float32(1e-5))
_LAYER_NORM, _FACTORS_OF_CHANNELS = 17, 21


def _layer(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Layer normalisation with outputs of mean and deviation, or of doubles, which TVM lacks.

    Nodes in older operator sets, which onnxruntime's optimiser writes, are expanded as well.
    """
    data, scale, bias = optional(node.input, 3)
    shape, kind = graph.shape(data), graph.element_type(data)
    output, mean, inverse = optional(node.output, 3)
    is_older = kind == TensorProto.DOUBLE or graph.opset < _LAYER_NORM
    if shape is None or not (is_older or mean or inverse):
        return False
    given = attributes_of(node)
    if kind != TensorProto.DOUBLE:
        data = graph.cast(data, given.get("stash_type", TensorProto.FLOAT))
    axes = list(range(given.get("axis", -1) % len(shape), len(shape)))
    apart, variance = _moments(graph, data, axes, mean)
    deviation = graph.op("Sqrt", [graph.op("Add", [variance, given.get("epsilon", EPSILON)])])
    normal = graph.cast(graph.op("Div", [apart, deviation]), kind)
    scaled = graph.op("Mul", [normal, scale], None if bias else output)
    if bias:
        graph.op("Add", [scaled, bias], output)
    if inverse:
        graph.op("Reciprocal", [deviation], inverse)
    return True


def _moments(graph: GraphBuilder, data: str, axes: list[int], mean: str = "") -> tuple[str, str]:
    """Data less their mean, which may get a name, and their variance."""
    apart = graph.op("Sub", [data, graph.reduce("ReduceMean", data, axes, output=mean or None)])
    return apart, graph.reduce("ReduceMean", graph.op("Mul", [apart, apart]), axes)


def _mean_and_variance(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    axes = list(attributes_of(node).get("axes", (0, 2, 3)))
    apart, variance = _moments(graph, node.input[0], axes)
    deviation = graph.op("Add", [graph.op("Sqrt", [variance]), 1e-9])
    graph.op("Div", [apart, deviation], node.output[0])
    return True


def _group(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Normalise groups as instances: TVM's kernel subtracts squares, which cancel far from zero."""
    (data, scale, shift), given = node.input, attributes_of(node)
    shape, count = graph.shape(data), given["num_groups"]
    if shape is None or graph.element_type(data) != TensorProto.FLOAT:
        return False
    groups = [shape[0], count, int(np.prod(shape[1:])) // count]
    rows = graph.reshape(data, groups)
    ones, zeros = (graph.constant(np.full(count, each, np.float32)) for each in (1, 0))
    epsilon = given.get("epsilon", EPSILON)
    normal = graph.op("InstanceNormalization", [rows, ones, zeros], epsilon=epsilon)
    # Before operator set 21, a factor is of a group.
    wide = shape if graph.opset >= _FACTORS_OF_CHANNELS else groups
    channels = [1, wide[1], *([1] * (len(wide) - 2))]
    normal = graph.op("Mul", [graph.reshape(normal, wide), graph.reshape(scale, channels)])
    shifted = graph.op("Add", [normal, graph.reshape(shift, channels)])
    graph.reshape(shifted, shape, node.output[0])
    return True


def _batch(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    is_trained = bool(attributes_of(node).get("training_mode"))
    return is_trained and graph.refuse(node, "is in training mode")


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
    if not centred:
        return _write_rms(graph, data, scale, epsilon, output)
    inputs = [data, scale, *([shift] if shift else [])]
    graph.op("LayerNormalization", inputs, output, epsilon=epsilon)
    return True


def _rms_norm(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    given, shape = attributes_of(node), graph.shape(node.input[0])
    last = shape is not None and given.get("axis", -1) in (-1, len(shape) - 1)
    if not last or any(node.output[1:]):
        return graph.refuse(node, "normalises over more than the last axis, or has two outputs")
    return _write_rms(graph, *node.input, given.get("epsilon", EPSILON), node.output[0])


def _write_rms(graph: GraphBuilder, data: str, scale: str, epsilon: float, output: str) -> bool:
    axes = [len(graph.shape(data)) - 1]
    square = graph.reduce("ReduceMean", graph.op("Mul", [data, data]), axes)
    deviation = graph.op("Sqrt", [graph.op("Add", [square, epsilon])])
    graph.op("Mul", [graph.op("Div", [data, deviation]), scale], output)
    return True


HANDLERS: dict[str, Handler] = {
    "BatchNormalization": _batch,
    "GroupNormalization": _group,
    "LayerNormalization": _layer,
    "MeanVarianceNormalization": _mean_and_variance,
    "SimplifiedLayerNormalization": _rms_norm,
    f"{MICROSOFT}.SimplifiedLayerNormalization": _rms_norm,
    f"{MICROSOFT}.SkipLayerNormalization": _skip_layer_norm,
    f"{MICROSOFT}.SkipSimplifiedLayerNormalization": _skip_layer_norm,
}

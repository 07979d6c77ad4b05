"""Operators of classical machine learning (domain ai.onnx.ml) that are plain arithmetic."""

from __future__ import annotations

import numpy as np
from onnx import NodeProto, TensorProto

from fewtune.onnx_graph.operators.builder import GraphBuilder, Handler, Scope
from fewtune.onnx_graph.operators.fused import attributes_of

_DOMAIN = "ai.onnx.ml"


def _floats(graph: GraphBuilder, name: str) -> str:
    return graph.cast(name, TensorProto.FLOAT)


def _numbers(graph: GraphBuilder, values: object) -> str:
    return graph.constant(np.array(values), np.float32)


def _scaler(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:  # noqa: ARG001
    given = attributes_of(node)
    data = _floats(graph, node.input[0])
    if given.get("offset"):
        data = graph.op("Sub", [data, _numbers(graph, given["offset"])])
    graph.op("Mul", [data, _numbers(graph, given.get("scale") or [1.0])], node.output[0])
    return True


def _linear(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:  # noqa: ARG001
    given = attributes_of(node)
    if given.get("post_transform", b"NONE") != b"NONE":
        return graph.refuse(node, "transforms its result: export the model without post_transform")
    matrix = np.array(given["coefficients"], np.float32).reshape(int(given.get("targets", 1)), -1)
    product = ["MatMul", [_floats(graph, node.input[0]), _numbers(graph, matrix.T)]]
    if not given.get("intercepts"):
        graph.op(*product, node.output[0])
        return True
    graph.op("Add", [graph.op(*product), _numbers(graph, given["intercepts"])], node.output[0])
    return True


def _normalizer(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:  # noqa: ARG001
    data = _floats(graph, node.input[0])
    kind = attributes_of(node).get("norm", b"MAX").decode()
    shape = graph.shape(node.input[0])
    if shape is None:
        return graph.refuse(node, "has an input whose shape is not known before the model runs")
    operator = {"MAX": "ReduceMax", "L1": "ReduceL1", "L2": "ReduceL2"}[kind]
    norm = graph.reduce(operator, data, [len(shape) - 1])
    graph.op("Div", [data, norm], node.output[0])
    return True


def _binarizer(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:  # noqa: ARG001
    bound = graph.constant(attributes_of(node).get("threshold", 0.0), graph.dtype(node.input[0]))
    above = graph.op("Greater", [node.input[0], bound])
    graph.cast(above, graph.element_type(node.input[0]), node.output[0])
    return True


def _features(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:  # noqa: ARG001
    data, places = node.input
    shape, chosen = graph.shape(data), graph.value(places)
    if shape is None or chosen is None:
        return graph.refuse(node, "takes features whose places are no constants")
    if len(shape) == 1:
        data = graph.reshape(data, [1, *shape])
    flat = graph.constant(chosen.reshape(-1), np.int64)
    graph.op("Gather", [data, flat], node.output[0], axis=max(1, len(shape) - 1))
    return True


HANDLERS: dict[tuple[str, str], Handler] = {
    (_DOMAIN, "ArrayFeatureExtractor"): _features,
    (_DOMAIN, "Binarizer"): _binarizer,
    (_DOMAIN, "LinearRegressor"): _linear,
    (_DOMAIN, "Normalizer"): _normalizer,
    (_DOMAIN, "Scaler"): _scaler,
}

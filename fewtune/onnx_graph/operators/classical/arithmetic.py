"""Operators of classical machine learning (domain ai.onnx.ml) that are plain arithmetic."""

from __future__ import annotations

import numpy as np
from onnx import NodeProto, TensorProto, numpy_helper

from fewtune.onnx_graph.graph import attributes_of
from fewtune.onnx_graph.operators.builder import GraphBuilder, Handler, Scope
from fewtune.onnx_graph.operators.classical import scores

_DOMAIN = "ai.onnx.ml"
_MOST_KEYS = 4096
# From this version of ai.onnx.ml, onnxruntime's LabelEncoder finds NaN among its keys.
_NAN_IS_FOUND = 4


def _floats(graph: GraphBuilder, name: str) -> str:
    return graph.cast(name, TensorProto.FLOAT)


def _scaler(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    given = attributes_of(node)
    data = _floats(graph, node.input[0])
    if given.get("offset"):
        data = graph.op("Sub", [data, graph.constant(given["offset"], np.float32)])
    graph.op("Mul", [data, graph.constant(given.get("scale") or [1.0], np.float32)], node.output[0])
    return True


def _linear(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    given = attributes_of(node)
    transform = given.get("post_transform", b"NONE").decode()
    # onnxruntime does not transform a single target, although ONNX specifies it.
    is_one = int(given.get("targets", 1)) == 1 and transform != "NONE"
    if transform not in scores.TRANSFORMS or is_one:
        return graph.refuse(node, f"transforms its result by {transform}, which is not supported")
    matrix = np.array(given["coefficients"], np.float32).reshape(int(given.get("targets", 1)), -1)
    result = graph.op(
        "MatMul", [_floats(graph, node.input[0]), graph.constant(matrix.T, np.float32)]
    )
    if given.get("intercepts"):
        result = graph.op("Add", [result, graph.constant(given["intercepts"], np.float32)])
    scores.transformed(graph, result, transform, node.output[0])
    return True


def _classifier(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    given = attributes_of(node)
    labels, intercepts = given.get("classlabels_ints"), given.get("intercepts") or []
    transform = given.get("post_transform", b"NONE").decode()
    is_binary = len(labels or ()) == 2 and len(intercepts) == 1
    if not labels or len(labels) < 2 or not (is_binary or len(labels) == len(intercepts)):
        return graph.refuse(node, "has no label and intercept for each class")
    if transform not in scores.TRANSFORMS:
        return graph.refuse(node, f"transforms its scores by {transform}, which is not supported")
    shape = graph.shape(node.input[0])
    if shape is None or len(shape) != 2:
        return graph.refuse(node, "reads features whose shape, (rows, features), is not known")
    matrix = np.array(given["coefficients"], np.float32).reshape(len(intercepts), -1)
    product = graph.op(
        "MatMul", [_floats(graph, node.input[0]), graph.constant(matrix.T, np.float32)]
    )
    total = graph.op("Add", [product, graph.constant(intercepts, np.float32)])
    if is_binary:
        # There is only the second class' score, to which onnxruntime applies no softmax.
        scores.label_above(graph, total, 0.0, labels, node.output[0])
        share = graph.op("Sigmoid", [total]) if transform == "LOGISTIC" else total
        scores.both_sides(graph, share, "NONE", True, node.output[1])
        return True
    scores.best_label(graph, total, labels, node.output[0])
    scores.transformed(graph, total, transform, node.output[1])
    return True


def _imputer(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    given, data = attributes_of(node), node.input[0]
    kind = "float" if "imputed_value_floats" in given else "int64"
    filled = graph.constant(np.array(given[f"imputed_value_{kind}s"], graph.dtype(data)))
    wanted = given.get(f"replaced_value_{kind}", 0)
    if np.isnan(wanted):
        missing = graph.op("IsNaN", [data])
    else:
        missing = graph.op("Equal", [data, graph.constant(wanted, graph.dtype(data))])
    graph.op("Where", [missing, filled, data], node.output[0])
    return True


def _encoder(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Map integers or floats: find the index of the equal key, then gather that key's value."""
    given, data = attributes_of(node), node.input[0]
    keys, values = (_coded(given, side) for side in ("keys", "values"))
    if keys is None or values is None or len(keys) > _MOST_KEYS:
        return graph.refuse(node, f"maps strings, or more than {_MOST_KEYS} numbers")
    shape = graph.shape(data)
    if shape is None:
        return graph.refuse(node, "has an input whose shape is not known before the model runs")
    apart = graph.reshape(data, [*shape, 1])
    same = graph.op("Equal", [apart, graph.constant(keys, graph.dtype(data))])
    if graph.opsets.get(_DOMAIN, 1) >= _NAN_IS_FOUND and np.isnan(keys).any():
        missing = graph.op("And", [graph.op("IsNaN", [apart]), graph.constant(np.isnan(keys))])
        same = graph.op("Or", [same, missing])
    # Descending numbers: of a key that is listed twice the first counts.
    numbers = graph.constant(np.arange(len(keys), 0, -1), np.int64)
    found = graph.op("Mul", [graph.cast(same, TensorProto.INT64), numbers])
    place = graph.reduce("ReduceMax", found, [len(shape)], 0)
    default = given.get("default_tensor")
    if default is not None:
        other = numpy_helper.to_array(default).reshape(1)
    else:
        kind, usual = ("float", -0.0) if values.dtype.kind == "f" else ("int64", -1)
        other = np.array([given.get(f"default_{kind}", usual)])
    table = np.concatenate([other.astype(values.dtype), values[::-1]])
    graph.op("Gather", [graph.constant(table), place], node.output[0], axis=0)
    return True


def _coded(given: dict[str, object], side: str) -> np.ndarray | None:
    """Keys or values that are numbers; None for strings."""
    if f"{side}_tensor" in given:
        array = numpy_helper.to_array(given[f"{side}_tensor"]).reshape(-1)
        return array if array.dtype.kind in "if" else None
    for name, dtype in ((f"{side}_floats", np.float32), (f"{side}_int64s", np.int64)):
        if given.get(name):
            return np.array(given[name], dtype)
    return None


def _normalizer(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    data = _floats(graph, node.input[0])
    kind = attributes_of(node).get("norm", b"MAX").decode()
    shape = graph.shape(node.input[0])
    if shape is None:
        return graph.refuse(node, "has an input whose shape is not known before the model runs")
    operator = {"MAX": "ReduceMax", "L1": "ReduceL1", "L2": "ReduceL2"}[kind]
    norm = graph.reduce(operator, data, [len(shape) - 1])
    # A row of norm zero, such as a text of unknown words only, stays as it is.
    is_zero = graph.op("Equal", [norm, graph.constant(0, np.float32)])
    divisor = graph.op("Where", [is_zero, graph.constant(1, np.float32), norm])
    graph.op("Div", [data, divisor], node.output[0])
    return True


def _binarizer(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    bound = graph.constant(attributes_of(node).get("threshold", 0.0), graph.dtype(node.input[0]))
    above = graph.op("Greater", [node.input[0], bound])
    graph.cast(above, graph.element_type(node.input[0]), node.output[0])
    return True


def _features(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    data, places = node.input
    shape, chosen = graph.shape(data), graph.shape(places)
    if shape is None or chosen is None:
        return graph.refuse(node, "has an input whose shape is not known before the model runs")
    if len(shape) == 1:
        data = graph.reshape(data, [1, *shape])
    flat = graph.reshape(places, [int(np.prod(chosen))])
    graph.op("Gather", [data, flat], node.output[0], axis=max(1, len(shape) - 1))
    return True


def _one_hot(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Compare each element with all categories, along a new last axis."""
    categories = attributes_of(node).get("cats_int64s")
    if not categories:
        return graph.refuse(node, "has strings as categories: encode them before the model")
    shape = graph.shape(node.input[0])
    if shape is None:
        return graph.refuse(node, "has an input whose shape is not known before the model runs")
    apart = graph.reshape(graph.cast(node.input[0], TensorProto.INT64), [*shape, 1])
    same = graph.op("Equal", [apart, graph.constant(categories, np.int64)])
    graph.cast(same, TensorProto.FLOAT, node.output[0])
    return True


def _joined_features(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    shapes = [graph.shape(name) for name in node.input]
    widths = attributes_of(node).get("inputdimensions") or []
    known = [shape for shape in shapes if shape is not None and len(shape) == 2]
    if len(known) != len(shapes) or [shape[1] for shape in known] != list(widths):
        return graph.refuse(node, "has inputs whose widths differ from its inputdimensions")
    graph.concat([_floats(graph, name) for name in node.input], 1, node.output[0])
    return True


HANDLERS: dict[tuple[str, str], Handler] = {
    (_DOMAIN, "ArrayFeatureExtractor"): _features,
    (_DOMAIN, "Binarizer"): _binarizer,
    (_DOMAIN, "FeatureVectorizer"): _joined_features,
    (_DOMAIN, "Imputer"): _imputer,
    (_DOMAIN, "LabelEncoder"): _encoder,
    (_DOMAIN, "LinearClassifier"): _classifier,
    (_DOMAIN, "LinearRegressor"): _linear,
    (_DOMAIN, "Normalizer"): _normalizer,
    (_DOMAIN, "OneHotEncoder"): _one_hot,
    (_DOMAIN, "Scaler"): _scaler,
}

"""Support vector machines of ai.onnx.ml, and distances, as onnxruntime computes them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper

from fewtune.onnx_graph.graph import attributes_of
from fewtune.onnx_graph.operators.builder import MICROSOFT, GraphBuilder, Handler, Scope
from fewtune.onnx_graph.operators.classical import scores

_DOMAIN = "ai.onnx.ml"
_BINARY = 2
# Begins the doc string of the node that couples scores of pairs into probabilities.
COUPLING = "couples: "


def _features(graph: GraphBuilder, node: NodeProto) -> str | None:
    """The data, (rows, features), as floats; None if the node is refused."""
    shape = graph.shape(node.input[0])
    if shape is None or len(shape) != 2:
        graph.refuse(node, "reads features whose shape, (rows, features), is not known")
        return None
    return graph.cast(node.input[0], TensorProto.FLOAT)


def _kernel(graph: GraphBuilder, data: str, vectors: np.ndarray, given: dict[str, Any]) -> str:
    """The kernel function of each row and support vector, (rows, vectors)."""
    kind = given.get("kernel_type", b"LINEAR").decode()
    gamma, shift, degree = (given.get("kernel_params") or [0.0, 0.0, 0.0])[:3]
    if kind == "RBF":
        # Not by squares and a product, which lose the difference of near vectors in rounding.
        rows, features = graph.shape(data)
        apart = graph.op(
            "Sub",
            [graph.reshape(data, [rows, 1, features]), graph.constant(vectors[None], np.float32)],
        )
        squares = graph.op("Mul", [apart, apart])
        distances = graph.reduce("ReduceSum", squares, [2], 0)
        return graph.op("Exp", [graph.op("Mul", [distances, graph.constant(-gamma, np.float32)])])
    result = graph.op("MatMul", [data, graph.constant(vectors.T, np.float32)])
    if kind == "LINEAR":
        return result
    result = graph.op("Mul", [result, graph.constant(gamma, np.float32)])
    result = graph.op("Add", [result, graph.constant(shift, np.float32)])
    if kind == "SIGMOID":
        return graph.op("Tanh", [result])
    if degree in (2, 3):
        # A power of a negative number may be NaN.
        square = graph.op("Mul", [result, result])
        return square if degree == 2 else graph.op("Mul", [square, result])
    return graph.op("Pow", [result, graph.constant(degree, np.float32)])


def _regressor(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    given, data = attributes_of(node), _features(graph, node)
    if data is None:
        return False
    weights = np.array(given["coefficients"], np.float32)
    count = int(given.get("n_supports", 0))
    if count:
        vectors = np.array(given["support_vectors"], np.float32).reshape(count, -1)
        data = _kernel(graph, data, vectors, given)
    product = graph.op("MatMul", [data, graph.constant(weights.reshape(-1, 1))])
    is_side = bool(given.get("one_class", 0))
    total = graph.op(
        "Add",
        [product, graph.constant(given["rho"][:1], np.float32)],
        None if is_side else node.output[0],
    )
    if is_side:
        inside = graph.op("Greater", [total, graph.constant(0.0, np.float32)])
        sides = [graph.constant(1.0, np.float32), graph.constant(-1.0, np.float32)]
        graph.op("Where", [inside, *sides], node.output[0])
    return True


def _classifier(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    given = attributes_of(node)
    if node.doc_string.startswith(COUPLING):
        return False
    labels = given.get("classlabels_ints")
    if not labels or len(labels) < _BINARY:
        return graph.refuse(node, "has string labels that other nodes read, or only one label")
    transform = given.get("post_transform", b"NONE").decode()
    if transform not in scores.TRANSFORMS:
        return graph.refuse(node, f"transforms its scores by {transform}, which is not supported")
    data = _features(graph, node)
    if data is None:
        return False
    if not sum(given.get("vectors_per_class") or []):
        return _linear(graph, node, data, given)
    pairs = _pair_scores(graph, data, given)
    _most_votes(graph, pairs, labels, node.output[0])
    if given.get("prob_a"):
        shares = _shares(graph, pairs, given)
        scores.transformed(graph, shares, transform, node.output[1])
    elif len(labels) > _BINARY:
        scores.transformed(graph, pairs, transform, node.output[1])
    elif transform == "NONE":
        graph.op("Concat", [graph.op("Neg", [pairs]), pairs], node.output[1], axis=1)
    else:
        return graph.refuse(node, f"transforms the one score of two classes by {transform}")
    return True


def _linear(graph: GraphBuilder, node: NodeProto, data: str, given: dict[str, Any]) -> bool:
    """A linear classifier: scores of all classes by one product, without support vectors."""
    labels, transform = given["classlabels_ints"], given.get("post_transform", b"NONE").decode()
    matrix = np.array(given["coefficients"], np.float32).reshape(len(labels), -1)
    product = graph.op("MatMul", [data, graph.constant(matrix.T)])
    total = graph.op("Add", [product, graph.constant(given["rho"][:1], np.float32)])
    if len(labels) == _BINARY:
        # onnxruntime also takes the second label if the highest score is above a bound.
        is_share = bool((matrix >= 0).all())
        bound = np.nextafter(np.float32(0.5), np.float32(0)) if is_share else np.float32(0)
        most = graph.reduce("ReduceMax", total, [1])
        above = graph.op("Greater", [most, graph.constant(bound)])
        first, second = (graph.slice(total, 1, at, at + 1) for at in range(_BINARY))
        is_second = graph.op("Or", [above, graph.op("Greater", [second, first])])
        place = graph.reshape(graph.cast(is_second, TensorProto.INT64), [-1])
        graph.op("Gather", [graph.constant(labels, np.int64), place], node.output[0], axis=0)
    else:
        scores.best_label(graph, total, labels, node.output[0])
    scores.transformed(graph, total, transform, node.output[1])
    return True


def _pair_scores(graph: GraphBuilder, data: str, given: dict[str, Any]) -> str:
    """Decision value of each pair of classes, (rows, pairs); positive for the first class."""
    counts = list(given["vectors_per_class"])
    total, begins = sum(counts), [0, *itertools.accumulate(counts)]
    vectors = np.array(given["support_vectors"], np.float32).reshape(total, -1)
    weights = np.array(given["coefficients"], np.float32).reshape(-1, total)
    pairs = list(itertools.combinations(range(len(counts)), 2))
    matrix = np.zeros((total, len(pairs)), np.float32)
    for place, (first, second) in enumerate(pairs):
        for own, row in ((first, second - 1), (second, first)):
            its = slice(begins[own], begins[own + 1])
            matrix[its, place] = weights[row, its]
    product = graph.op("MatMul", [_kernel(graph, data, vectors, given), graph.constant(matrix)])
    return graph.op("Add", [product, graph.constant(given["rho"][: len(pairs)], np.float32)])


def _most_votes(graph: GraphBuilder, pairs: str, labels: list[int], output: str) -> None:
    """Write the label that most pairs vote for, the first of equal ones, (rows,)."""
    if not output:
        return
    combinations = list(itertools.combinations(range(len(labels)), 2))
    for_first, for_second = np.zeros((2, len(combinations), len(labels)), np.float32)
    for place, (first, second) in enumerate(combinations):
        for_first[place, first] = 1
        for_second[place, second] = 1
    ahead = graph.cast(
        graph.op("Greater", [pairs, graph.constant(0.0, np.float32)]), TensorProto.FLOAT
    )
    # Each pair votes for one of its two classes.
    won = graph.op("MatMul", [ahead, graph.constant(for_first - for_second)])
    votes = graph.op("Add", [won, graph.constant(for_second.sum(axis=0))])
    scores.best_label(graph, votes, labels, output)


def _shares(graph: GraphBuilder, pairs: str, given: dict[str, Any]) -> str:
    """Probabilities of all classes, coupled from those of pairs, (rows, classes).

    Only SVMClassifier couples probabilities in ONNX. So one with a linear kernel gets the decision
    values as features; its support vectors are unit vectors, one for each pair's first class.
    """
    classes = len(given["classlabels_ints"])
    count = classes * (classes - 1) // 2
    weights = np.zeros((classes - 1, count), np.float32)
    for place, (_, second) in enumerate(itertools.combinations(range(classes), 2)):
        weights[second - 1, place] = 1
    names = [graph.fresh(f"coupled_{what}") for what in ("label", "shares")]
    coupling = helper.make_node(
        "SVMClassifier",
        [pairs],
        names,
        names[1],
        domain=_DOMAIN,
        doc_string=f"{COUPLING}{count} pairs",
        classlabels_ints=list(range(classes)),
        coefficients=weights.reshape(-1).tolist(),
        kernel_params=[0.0, 0.0, 0.0],
        kernel_type="LINEAR",
        prob_a=list(given["prob_a"])[:count],
        prob_b=list(given["prob_b"])[:count],
        rho=[0.0] * count,
        support_vectors=np.eye(count, dtype=np.float32).reshape(-1).tolist(),
        vectors_per_class=list(range(classes - 1, -1, -1)),
    )
    rows = graph.shape(pairs)[0]
    graph.declare(names[0], TensorProto.INT64, [rows])
    graph.declare(names[1], TensorProto.FLOAT, [rows, classes])
    graph.add(coupling, {})
    return names[1]


def _distances(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Distances between all pairs of rows, from squares and a product as onnxruntime has them."""
    shapes = [graph.shape(name) for name in node.input]
    if any(shape is None or len(shape) != 2 for shape in shapes):
        return graph.refuse(node, "reads rows whose shape, (rows, features), is not known")
    first, second = node.input
    squares = [graph.reduce("ReduceSum", graph.op("Mul", [rows, rows]), [1]) for rows in node.input]
    squares[1] = graph.reshape(squares[1], [1, shapes[1][0]])
    product = graph.op("MatMul", [first, graph.fold("Transpose", [second], perm=[1, 0])])
    twice = graph.op("Add", [product, product])
    total = graph.op("Sub", [graph.op("Add", squares), twice])
    is_root = attributes_of(node).get("metric", b"sqeuclidean") == b"euclidean"
    bounded = [total, graph.constant(0, graph.dtype(first))]
    result = graph.op("Max", bounded, None if is_root else node.output[0])
    if is_root:
        graph.op("Sqrt", [result], node.output[0])
    return True


HANDLERS: dict[tuple[str, str], Handler] = {
    (MICROSOFT, "CDist"): _distances,
    (_DOMAIN, "SVMClassifier"): _classifier,
    (_DOMAIN, "SVMRegressor"): _regressor,
}

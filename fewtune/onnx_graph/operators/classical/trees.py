"""Ensembles of decision trees: every condition at once, the leaves reached, a product.

A leaf is reached where all conditions on the way to it come out as they must. The leaves, as zeros
and ones, times what each of them adds are one matrix product.
"""

from __future__ import annotations

import numpy as np
from onnx import NodeProto, TensorProto

from fewtune.onnx_graph.operators.builder import GraphBuilder, Handler, Scope
from fewtune.onnx_graph.operators.classical import scores
from fewtune.onnx_graph.operators.classical.forest import Forest, UnknownFormError, forest_of
from fewtune.onnx_graph.operators.fused import attributes_of

_DOMAIN = "ai.onnx.ml"
_BINARY = 2
# A hundred trees of a thousand leaves each, thirty conditions deep.
_MOST_CONDITIONS = 3_000_000
# Old operator sets have no LessOrEqual; of NaN, "not greater" would be true.
_COMPARISONS = {
    "BRANCH_LEQ": ("Less", "Equal"),
    "BRANCH_LT": ("Less",),
    "BRANCH_GTE": ("Greater", "Equal"),
    "BRANCH_GT": ("Greater",),
    "BRANCH_EQ": ("Equal",),
    "BRANCH_NEQ": ("Equal",),
}


def _forest(graph: GraphBuilder, node: NodeProto) -> Forest | None:
    """The node's forest; None where it is refused."""
    shape = graph.shape(node.input[0])
    if shape is None or len(shape) != _BINARY:
        graph.refuse(node, "reads features whose shape, (rows, features), is not known")
        return None
    try:
        forest = forest_of(node, _MOST_CONDITIONS)
    except UnknownFormError as fault:
        graph.refuse(node, str(fault))
        return None
    if forest.transform not in scores.TRANSFORMS:
        graph.refuse(node, f"transforms its scores by {forest.transform}, which is not supported")
        return None
    if forest.aggregate in ("MIN", "MAX") and forest.weights.shape[1] > 1:
        graph.refuse(node, f"has the {forest.aggregate} of several targets")
        return None
    return forest


def _conditions(graph: GraphBuilder, data: str, forest: Forest) -> str:
    """Whether each condition is fulfilled, (rows, conditions)."""
    read = graph.op("Gather", [data, graph.constant(forest.features)], axis=1)
    splits = graph.constant(forest.splits.astype(graph.dtype(data)))
    result = ""
    for mode in sorted(set(forest.modes.tolist())):
        each = [graph.op(operator, [read, splits]) for operator in _COMPARISONS[mode]]
        found = graph.op("Or", each) if len(each) > 1 else each[0]
        if mode == "BRANCH_NEQ":
            found = graph.op("Not", [found])
        if len(set(forest.modes.tolist())) > 1:
            found = graph.op("And", [found, graph.constant(forest.modes == mode)])
        result = graph.op("Or", [result, found]) if result else found
    if forest.missing.any():
        missing = graph.op("And", [graph.op("IsNaN", [read]), graph.constant(forest.missing)])
        result = graph.op("Or", [result, missing])
    return result


def _sums(graph: GraphBuilder, node: NodeProto, forest: Forest) -> str:
    """What the leaves reached add up to, (rows, targets)."""
    data = node.input[0]
    if graph.element_type(data) != TensorProto.DOUBLE:
        data = graph.cast(data, TensorProto.FLOAT)
    kind = graph.element_type(data)
    weights = forest.weights.astype(graph.dtype(data))
    rows = graph.shape(data)[0]
    if forest.paths.shape[1] == 0:
        reached = graph.constant(np.ones((rows, len(weights)), weights.dtype))
    else:
        met = _conditions(graph, data, forest)
        on_way = graph.op("Gather", [met, graph.constant(forest.paths)], axis=1)
        right = graph.op("Xor", [on_way, graph.constant(~forest.ways)])
        reached = graph.reduce("ReduceMin", graph.cast(right, kind), [2], 0)
    if forest.aggregate in ("MIN", "MAX"):
        count = int(forest.trees.max()) + 1
        apart = np.zeros((len(weights), count), weights.dtype)
        apart[np.arange(len(weights)), forest.trees] = weights[:, 0]
        each = graph.op("MatMul", [reached, graph.constant(apart)])
        total = graph.reduce(f"Reduce{forest.aggregate.title()}", each, [1])
    else:
        total = graph.op("MatMul", [reached, graph.constant(weights)])
    if forest.aggregate == "AVERAGE":
        count = len(set(forest.trees.tolist()))
        total = graph.op("Div", [total, graph.constant(count, weights.dtype)])
    if len(forest.base):
        total = graph.op("Add", [total, graph.constant(forest.base.astype(weights.dtype))])
    return total


def _regressor(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:  # noqa: ARG001
    forest = _forest(graph, node)
    if forest is None:
        return False
    if len(forest.base) not in (0, forest.weights.shape[1]):
        return graph.refuse(node, "has another number of base values than of targets")
    kind = graph.element_type(node.input[0]) if node.op_type == "TreeEnsemble" else 0
    total = graph.cast(_sums(graph, node, forest), kind or TensorProto.FLOAT)
    # onnxruntime transforms several targets only.
    transform = forest.transform if forest.weights.shape[1] > 1 else "NONE"
    scores.transformed(graph, total, transform, node.output[0])
    return True


def _classifier(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:  # noqa: ARG001
    forest = _forest(graph, node)
    if forest is None:
        return False
    labels = attributes_of(node).get("classlabels_int64s")
    if not labels:
        return graph.refuse(node, "has texts as labels, which other nodes read")
    classes = len(labels)
    if classes > _BINARY:
        if len(forest.base) not in (0, classes):
            return graph.refuse(node, "has another number of base values than of classes")
        if not len(forest.base) and not _all_scored(forest):
            return graph.refuse(node, "has classes that some rows give no score")
        total = graph.cast(_sums(graph, node, forest), TensorProto.FLOAT)
        scores.best_label(graph, total, labels, node.output[0])
        scores.transformed(graph, total, forest.transform, node.output[1])
        return True
    is_plain = forest.transform in ("NONE", "LOGISTIC") and len(forest.base) <= 1
    # All leaves score the first class, whose score onnxruntime takes for the second's.
    is_one = np.flatnonzero(forest.weighted.any(axis=0)).tolist() == [0]
    if classes != _BINARY or not is_one or not is_plain:
        return graph.refuse(node, "scores two classes apart, or one: its form is not supported")
    only = graph.slice(_sums(graph, node, forest), 1, 0, 1)
    only = graph.cast(only, TensorProto.FLOAT)
    is_share = bool((forest.weights >= 0).all())
    scores.label_above(graph, only, 0.5 if is_share else 0.0, labels, node.output[0])
    scores.both_sides(graph, only, forest.transform, is_share, node.output[1])
    return True


def _all_scored(forest: Forest) -> bool:
    """Whether every class has a score in every row, or none could be the best without one."""
    if (forest.weights >= 0).all():
        return True
    count = int(forest.trees.max()) + 1
    leaves = np.bincount(forest.trees, minlength=count)
    for weighted in forest.weighted.T:
        if not (np.bincount(forest.trees, weighted, count) == leaves).any():
            return False
    return True


HANDLERS: dict[tuple[str, str], Handler] = {
    (_DOMAIN, "TreeEnsemble"): _regressor,
    (_DOMAIN, "TreeEnsembleClassifier"): _classifier,
    (_DOMAIN, "TreeEnsembleRegressor"): _regressor,
}

"""Ensembles of decision trees: one comparison of all conditions, and one matrix product.

A leaf is reached if every condition on the path to it has the outcome that the leaf requires. The
reached leaves, as zeros and ones, are multiplied by the matrix of their values. A large forest is
traversed instead: it becomes one plain regressor, which the import turns into a kernel of loops
(`fewtune.model.passes.tvmscript.tree_ensemble`).
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
from onnx import NodeProto, TensorProto, helper

from fewtune.onnx_graph.graph import attributes_of
from fewtune.onnx_graph.operators.builder import GraphBuilder, Handler, Scope
from fewtune.onnx_graph.operators.classical import scores
from fewtune.onnx_graph.operators.classical.forest import (
    EXTREMES,
    MEMBER,
    Forest,
    UnknownFormError,
    forest_of,
)
from fewtune.onnx_graph.operators.classical.paths import DecisionPaths, decision_paths

_DOMAIN = "ai.onnx.ml"
_BINARY = 2
# Attributes, or their beginnings, that are about sums and not about trees.
_ABOUT_SCORES = ("base_values", "classlabels_", "post_transform")
# Ten trees of a hundred leaves, ten conditions deep. A million take a compiler minutes.
_MOST_CONDITIONS = 10_000
# Begins the doc string of the regressor that replaces a traversed ensemble.
WALKED = "walks: "
# Old operator sets have no LessOrEqual, and "not greater" is true of NaN.
_COMPARISONS = {
    "BRANCH_LEQ": ("Less", "Equal"),
    "BRANCH_LT": ("Less",),
    "BRANCH_GTE": ("Greater", "Equal"),
    "BRANCH_GT": ("Greater",),
    "BRANCH_EQ": ("Equal",),
    # Not "not equal", which is false of NaN in TVM 0.27.
    "BRANCH_NEQ": ("Less", "Greater"),
}


def _forest(graph: GraphBuilder, node: NodeProto) -> Forest | None:
    """The node's forest; None if it is refused."""
    shape = graph.shape(node.input[0])
    if shape is None or len(shape) != _BINARY:
        graph.refuse(node, "reads features whose shape, (rows, features), is not known")
        return None
    try:
        forest = forest_of(node.op_type, attributes_of(node))
    except UnknownFormError as fault:
        graph.refuse(node, str(fault))
        return None
    if forest.transform not in scores.TRANSFORMS:
        graph.refuse(node, f"transforms its scores by {forest.transform}, which is not supported")
        return None
    return forest


def _conditions(graph: GraphBuilder, data: str, forest: Forest) -> str:
    """Whether each condition is fulfilled, (rows, conditions)."""
    read = graph.op("Gather", [data, graph.constant(forest.features)], axis=1)
    splits = graph.constant(forest.splits.astype(graph.dtype(data)))
    result = ""
    for mode in sorted(set(forest.modes.tolist())):
        if mode == MEMBER:
            each = [_members(graph, read, forest)]
        else:
            each = [graph.op(operator, [read, splits]) for operator in _COMPARISONS[mode]]
        found = graph.op("Or", each) if len(each) > 1 else each[0]
        if mode == "BRANCH_NEQ":
            found = graph.op("Or", [found, graph.op("IsNaN", [read])])
        if len(set(forest.modes.tolist())) > 1:
            found = graph.op("And", [found, graph.constant(forest.modes == mode)])
        result = graph.op("Or", [result, found]) if result else found
    if forest.missing.any():
        missing = graph.op("And", [graph.op("IsNaN", [read]), graph.constant(forest.missing)])
        result = graph.op("Or", [result, missing])
    return result


def _members(graph: GraphBuilder, read: str, forest: Forest) -> str:
    """Whether the feature of each condition is in its set, (rows, conditions)."""
    rows, conditions = graph.shape(read)
    sets = graph.constant(forest.members[None].astype(graph.dtype(read)))
    same = graph.op("Equal", [graph.reshape(read, [rows, conditions, 1]), sets])
    found = graph.reduce("ReduceMax", graph.cast(same, TensorProto.FLOAT), [2], 0)
    return graph.cast(found, TensorProto.BOOL)


def _sums(graph: GraphBuilder, node: NodeProto, forest: Forest) -> str | None:
    """Sums of the reached leaves, (rows, targets); None if the node is refused."""
    data = node.input[0]
    if graph.element_type(data) != TensorProto.DOUBLE:
        data = graph.cast(data, TensorProto.FLOAT)
    paths = decision_paths(forest, _MOST_CONDITIONS)
    if paths is not None:
        total = _product(graph, data, forest, paths)
    elif forest.members.size:
        graph.refuse(
            node,
            "tests sets in a large forest, or beside trees of one leaf, which is not supported",
        )
        return None
    else:
        total = _walked(graph, node, data, forest)
    if len(forest.base):
        base = graph.constant(forest.base.astype(graph.dtype(total)))
        total = graph.op("Add", [total, base])
    return total


def _walked(graph: GraphBuilder, node: NodeProto, data: str, forest: Forest) -> str:
    """Sums of leaves by one node of the same trees, which has no transform or labels."""
    kept = [each for each in node.attribute if not each.name.startswith(_ABOUT_SCORES)]
    output = graph.fresh(f"{node.output[0]}_walked")
    kind = graph.element_type(data)
    plain = helper.make_node(node.op_type, [data], [output], output, domain=_DOMAIN)
    plain.doc_string = f"{WALKED}{len(forest.roots)} trees"
    plain.attribute.extend(kept)
    if node.op_type == "TreeEnsembleClassifier":
        plain.op_type = "TreeEnsembleRegressor"
        for each in plain.attribute:
            each.name = re.sub("^class_", "target_", each.name)
        plain.attribute.append(helper.make_attribute("n_targets", forest.weights.shape[1]))
    if node.op_type != "TreeEnsemble":
        kind = TensorProto.FLOAT
    graph.declare(output, kind, [graph.shape(data)[0], forest.weights.shape[1]])
    graph.add(plain, {})
    return output


def _product(graph: GraphBuilder, data: str, forest: Forest, paths: DecisionPaths) -> str:
    """Sums of leaves by a matrix product over all leaves."""
    kind = graph.element_type(data)
    weights = forest.weights[paths.leaves].astype(graph.dtype(data))
    rows = graph.shape(data)[0]
    if forest.depth == 0:
        reached = graph.constant(np.ones((rows, len(weights)), weights.dtype))
    else:
        met = _conditions(graph, data, forest)
        on_path = graph.op("Gather", [met, graph.constant(paths.conditions)], axis=1)
        right = graph.op("Xor", [on_path, graph.constant(~paths.fulfilled)])
        reached = graph.reduce("ReduceMin", graph.cast(right, kind), [2], 0)
    if forest.aggregate in EXTREMES:
        return _extreme(graph, reached, rows, forest, paths)
    total = graph.op("MatMul", [reached, graph.constant(weights)])
    if forest.aggregate == "AVERAGE":
        total = graph.op("Div", [total, graph.constant(len(forest.roots), weights.dtype)])
    return total


def _extreme(
    graph: GraphBuilder, reached: str, rows: int, forest: Forest, paths: DecisionPaths
) -> str:
    """For each target, the least or largest of the trees' values: (rows, targets)."""
    dtype, leaves = graph.dtype(reached), np.arange(len(paths.leaves))
    count, targets = len(forest.roots), forest.weights.shape[1]

    def by_tree(of_leaves: np.ndarray) -> str:
        apart = np.zeros((len(leaves), count, targets), dtype)
        apart[leaves, paths.trees] = of_leaves[paths.leaves]
        matrix = graph.constant(apart.reshape(len(leaves), -1))
        return graph.reshape(graph.op("MatMul", [reached, matrix]), [rows, count, targets])

    given, kind = by_tree(forest.weights), f"Reduce{forest.aggregate.title()}"
    if forest.weighted.all():
        return graph.reduce(kind, given, [1], 0)
    # A leaf without a weight for a target does not count. A target without any leaf is zero.
    zero, counts = graph.constant(0, dtype), by_tree(forest.weighted)
    nothing = graph.constant(EXTREMES[forest.aggregate], dtype)
    given = graph.op("Where", [graph.op("Greater", [counts, zero]), given, nothing])
    is_any = graph.op("Greater", [graph.reduce("ReduceMax", counts, [1], 0), zero])
    return graph.op("Where", [is_any, graph.reduce(kind, given, [1], 0), zero])


def _regressor(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    forest = None if node.doc_string.startswith(WALKED) else _forest(graph, node)
    if forest is None:
        return False
    if len(forest.base) not in (0, forest.weights.shape[1]):
        return graph.refuse(node, "does not have one base value for each target")
    total = _sums(graph, node, forest)
    if total is None:
        return False
    kind = graph.element_type(node.input[0]) if node.op_type == "TreeEnsemble" else 0
    total = graph.cast(total, kind or TensorProto.FLOAT)
    # onnxruntime does not transform a single target.
    transform = forest.transform if forest.weights.shape[1] > 1 else "NONE"
    scores.transformed(graph, total, transform, node.output[0])
    return True


def _classifier(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    forest = None if node.doc_string.startswith(WALKED) else _forest(graph, node)
    if forest is None:
        return False
    labels = attributes_of(node).get("classlabels_int64s")
    if not labels:
        return graph.refuse(node, "has string labels that other nodes read")
    classes = len(labels)
    if classes > _BINARY:
        if len(forest.base) not in (0, classes):
            return graph.refuse(node, "does not have one base value for each class")
        if not len(forest.base) and not _all_scored(forest):
            return graph.refuse(node, "has classes without a score in some rows")
        total = graph.cast(_sums(graph, node, forest), TensorProto.FLOAT)
        scores.best_label(graph, total, labels, node.output[0])
        scores.transformed(graph, total, forest.transform, node.output[1])
        return True
    always, ever = _always_scored(forest), forest.weighted.any(axis=0)
    is_clear = not len(forest.base) or (len(forest.base) == 1 and always[0] == ever[0])
    if classes == _BINARY and always[1] and is_clear:
        return _two_scores(graph, node, forest, labels)
    is_plain = forest.transform in ("NONE", "LOGISTIC") and len(forest.base) <= 1
    # All leaves score the first class: onnxruntime uses that score as the second's.
    is_one = np.flatnonzero(forest.weighted.any(axis=0)).tolist() == [0]
    if classes != _BINARY or not is_one or not is_plain:
        return graph.refuse(
            node, "scores two classes separately, or only one, which is not supported"
        )
    only = graph.slice(_sums(graph, node, forest), 1, 0, 1)
    only = graph.cast(only, TensorProto.FLOAT)
    is_share = bool((forest.weights >= 0).all())
    scores.label_above(graph, only, 0.5 if is_share else 0.0, labels, node.output[0])
    scores.both_sides(graph, only, forest.transform, is_share, node.output[1])
    return True


def _two_scores(graph: GraphBuilder, node: NodeProto, forest: Forest, labels: list[int]) -> bool:
    """Write two classes of which the second always has its own score."""
    is_one = not forest.weighted[:, 0].any()
    # onnxruntime adds a single base value to the first class. It uses the labels only if there is
    # one score.
    base = np.array([*forest.base, 0.0]) if len(forest.base) and not is_one else np.zeros(0)
    total = _sums(graph, node, replace(forest, base=base))
    if total is None:
        return False
    total = graph.cast(total, TensorProto.FLOAT)
    bound = 0.5 if is_one and (forest.weights >= 0).all() else 0.0
    second = graph.slice(total, 1, 1, 2)
    scores.label_above(graph, second, bound, labels if is_one else [0, 1], node.output[0])
    scores.transformed(graph, total, forest.transform, node.output[1])
    return True


def _always_scored(forest: Forest) -> np.ndarray:
    """For each class, whether every row has a score: all leaves of some tree give one."""
    count = int(forest.trees.max()) + 1
    leaves = np.bincount(forest.trees, minlength=count)
    given = [np.bincount(forest.trees, weighted, count) for weighted in forest.weighted.T]
    return np.array([(each == leaves).any() for each in given])


def _all_scored(forest: Forest) -> bool:
    """Whether classes without a score never win: none exist, or no weight is negative."""
    return bool((forest.weights >= 0).all() or _always_scored(forest).all())


HANDLERS: dict[tuple[str, str], Handler] = {
    (_DOMAIN, "TreeEnsemble"): _regressor,
    (_DOMAIN, "TreeEnsembleClassifier"): _classifier,
    (_DOMAIN, "TreeEnsembleRegressor"): _regressor,
}

"""The trees of an ensemble in arrays, read from any of ONNX's forms of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import NodeProto, helper, numpy_helper

_LEAF = "LEAF"
# TreeEnsemble of ai.onnx.ml 5 numbers them.
_MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


class UnknownFormError(ValueError):
    """An ensemble of a form that is not known; the message follows the node's name."""


@dataclass(frozen=True)
class Forest:
    """An ensemble of decision trees.

    Attributes
    ----------
    features, splits, modes, missing : numpy.ndarray
        Of the conditions: the feature that one reads, what it is compared with, how, and whether
        NaN fulfils it.
    paths, ways : numpy.ndarray
        Of the leaves, (leaves, depth): the conditions on the way there, and whether each is
        fulfilled. A shorter way repeats its last condition.
    weights, weighted : numpy.ndarray
        (leaves, targets): what a leaf adds to each target, and whether it does.
    trees : numpy.ndarray
        The tree of each leaf.
    base : numpy.ndarray
        What is added to each target, or nothing.
    transform, aggregate : str
    """

    features: np.ndarray
    splits: np.ndarray
    modes: np.ndarray
    missing: np.ndarray
    paths: np.ndarray
    ways: np.ndarray
    weights: np.ndarray
    weighted: np.ndarray
    trees: np.ndarray
    base: np.ndarray
    transform: str
    aggregate: str


@dataclass
class _Nodes:
    """Nodes in any order: the children of an inner one, or the weights of a leaf."""

    features: np.ndarray
    splits: np.ndarray
    modes: list[str]
    missing: np.ndarray
    children: list[tuple[int, int] | None]
    leaves: dict[int, list[tuple[int, float]]]
    roots: list[int]


def forest_of(node: NodeProto, most: int) -> Forest:
    """The forest that a node holds.

    Parameters
    ----------
    node : NodeProto
        TreeEnsemble, TreeEnsembleClassifier or TreeEnsembleRegressor.
    most : int
        Conditions on the ways to all leaves, at most, each way as long as the longest.

    Raises
    ------
    UnknownFormError
        If it has conditions of sets, is no forest, or is larger.
    """
    given = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    if node.op_type == "TreeEnsemble":
        nodes, targets = _numbered(given), int(given.get("n_targets", 1))
        transform = _TRANSFORMS[given.get("post_transform", 0)]
        aggregate, base = _AGGREGATES[given.get("aggregate_function", 1)], np.zeros(0)
    else:
        kind = "class" if node.op_type == "TreeEnsembleClassifier" else "target"
        labels = given.get("classlabels_int64s") or given.get("classlabels_strings") or []
        targets = len(labels) if kind == "class" else int(given.get("n_targets", 1))
        nodes = _named(given, kind)
        transform = given.get("post_transform", b"NONE").decode()
        aggregate = given.get("aggregate_function", b"SUM").decode()
        base = _array(given, "base_values")
    return _laid_out(nodes, targets, base, transform, aggregate, most)


def _array(given: dict[str, Any], name: str) -> np.ndarray:
    """Values of an attribute in its own precision; those of a tensor come first."""
    tensor = given.get(f"{name}_as_tensor")
    if tensor is not None:
        return numpy_helper.to_array(tensor).reshape(-1)
    return np.array(given.get(name, []), np.float32)


def _numbered(given: dict[str, Any]) -> _Nodes:
    """Of TreeEnsemble, whose nodes and leaves are numbered apart."""
    if any(name in given for name in ("membership_values",)):
        raise UnknownFormError("has conditions of sets, which are not supported")
    modes = [int(each) for each in numpy_helper.to_array(given["nodes_modes"])]
    if any(each >= len(_MODES) for each in modes):
        raise UnknownFormError("has conditions of sets, which are not supported")
    inner, weights = len(modes), numpy_helper.to_array(given["leaf_weights"]).reshape(-1)
    sides = [
        [int(at) + inner * bool(is_leaf) for at, is_leaf in zip(ids, leaves, strict=True)]
        for ids, leaves in (
            (given["nodes_truenodeids"], given["nodes_trueleafs"]),
            (given["nodes_falsenodeids"], given["nodes_falseleafs"]),
        )
    ]
    tracked = given.get("nodes_missing_value_tracks_true") or [0] * inner
    entries = zip(given["leaf_targetids"], weights, strict=True)
    # A root whose branches both lead to one leaf is how a tree of one leaf is written.
    return _Nodes(
        np.array(given["nodes_featureids"], np.int64),
        numpy_helper.to_array(given["nodes_splits"]).reshape(-1),
        [_MODES[each] for each in modes],
        np.array(tracked, bool),
        [*zip(*sides, strict=True), *[None] * len(weights)],
        {inner + place: [(int(target), weight)] for place, (target, weight) in enumerate(entries)},
        [int(each) for each in given["tree_roots"]],
    )


def _named(given: dict[str, Any], kind: str) -> _Nodes:
    """Of the older operators, whose nodes have a number within their tree."""
    names = list(zip(given["nodes_treeids"], given["nodes_nodeids"], strict=True))
    places = {name: place for place, name in enumerate(names)}
    modes = [mode.decode() for mode in given["nodes_modes"]]
    unknown = next((each for each in modes if each not in (*_MODES, _LEAF)), None)
    if unknown is not None:
        raise UnknownFormError(f"has a condition that is not known: {unknown}")
    children: list[tuple[int, int] | None] = []
    for (tree, _), mode, true, false in zip(
        names, modes, given["nodes_truenodeids"], given["nodes_falsenodeids"], strict=True
    ):
        is_leaf = mode == _LEAF
        children.append(None if is_leaf else (places[tree, true], places[tree, false]))
    leaves: dict[int, list[tuple[int, float]]] = {
        place: [] for place, pair in enumerate(children) if pair is None
    }
    for tree, number, target, weight in zip(
        given[f"{kind}_treeids"],
        given[f"{kind}_nodeids"],
        given[f"{kind}_ids"],
        _array(given, f"{kind}_weights"),
        strict=True,
    ):
        # What an inner node adds is never read.
        leaves.get(places[tree, number], []).append((int(target), weight))
    tracked = given.get("nodes_missing_value_tracks_true") or [0] * len(names)
    below = {place for pair in children if pair is not None for place in pair}
    return _Nodes(
        np.array(given["nodes_featureids"], np.int64),
        _array(given, "nodes_values"),
        modes,
        np.array(tracked, bool),
        children,
        leaves,
        [place for place in range(len(names)) if place not in below],
    )


def _laid_out(
    nodes: _Nodes, targets: int, base: np.ndarray, transform: str, aggregate: str, most: int
) -> Forest:
    """Follow every way from the roots."""
    ways: list[list[tuple[int, bool]]] = []
    entries: list[list[tuple[int, float]]] = []
    trees: list[int] = []
    depth = 0
    for tree, root in enumerate(nodes.roots):
        open_nodes: list[tuple[int, list[tuple[int, bool]]]] = [(root, [])]
        while open_nodes:
            place, way = open_nodes.pop()
            depth = max(depth, len(way))
            if depth * len(ways) > most:
                raise UnknownFormError(
                    f"has {len(ways)} leaves or more, up to {depth} conditions deep; at most "
                    f"{most} conditions are looked at: train it with fewer or shallower trees"
                )
            pair = nodes.children[place]
            if pair is None:
                ways.append(way)
                entries.append(nodes.leaves[place])
                trees.append(tree)
                continue
            for child, fulfilled in zip(pair, (True, False), strict=True):
                open_nodes.append((child, [*way, (place, fulfilled)]))
    inner = sorted({place for way in ways for place, _ in way})
    numbers = {place: number for number, place in enumerate(inner)}
    paths, taken = np.zeros((2, len(ways), depth), np.int64)
    for leaf, way in enumerate(ways):
        if not way and depth:
            raise UnknownFormError("has trees of a single leaf beside others")
        filled = [*way, *way[-1:] * (depth - len(way))]
        paths[leaf] = [numbers[place] for place, _ in filled]
        taken[leaf] = [fulfilled for _, fulfilled in filled]
    dtype = np.result_type(*[weight for each in entries for _, weight in each] or [np.float32(0)])
    weights, weighted = np.zeros((len(ways), targets), dtype), np.zeros((len(ways), targets), bool)
    for leaf, each in enumerate(entries):
        for target, weight in each:
            weights[leaf, target] += weight
            weighted[leaf, target] = True
    return Forest(
        nodes.features[inner],
        nodes.splits[inner],
        np.array([nodes.modes[place] for place in inner]),
        nodes.missing[inner],
        paths,
        taken.astype(bool),
        weights,
        weighted,
        np.array(trees),
        base,
        transform,
        aggregate,
    )

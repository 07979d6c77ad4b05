"""Decision trees of an ensemble as arrays, read from any of ONNX's forms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import add
from typing import Any

import numpy as np
from onnx import numpy_helper

_LEAF = "LEAF"
# In the order in which TreeEnsemble of ai.onnx.ml 5 numbers modes, aggregates and transforms.
MEMBER = "BRANCH_MEMBER"
_MODES = (
    "BRANCH_LEQ",
    "BRANCH_LT",
    "BRANCH_GTE",
    "BRANCH_GT",
    "BRANCH_EQ",
    "BRANCH_NEQ",
    MEMBER,
)
# What each aggregate starts from.
EXTREMES = {"MIN": np.inf, "MAX": -np.inf}
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


class UnknownFormError(ValueError):
    """An ensemble of an unknown form; the message continues a sentence on the node."""


@dataclass(frozen=True)
class Forest:
    """An ensemble of decision trees.

    Attributes
    ----------
    features, splits, modes, missing : numpy.ndarray
        (conditions,): the feature that is compared, the value that it is compared with, the kind
        of comparison, and whether NaN fulfils the condition.
    members : numpy.ndarray
        (conditions, size): the set that a feature is tested against, padded with NaN; size 0 if
        there are no sets.
    children : numpy.ndarray
        (conditions, 2): the child of a condition that is fulfilled, and of one that is not.
        Numbers below that of the conditions are conditions, the others leaves.
    roots : numpy.ndarray
        (trees,): the root of each tree, numbered as the children.
    depth : int
        Conditions on the longest path.
    trees : numpy.ndarray
        (leaves,): the tree of each leaf.
    weights, weighted : numpy.ndarray
        (leaves, targets): the value that a leaf adds to each target, and whether it has one.
    base : numpy.ndarray
        (targets,): the base values; empty if there are none.
    transform, aggregate : str
    """

    features: np.ndarray
    splits: np.ndarray
    modes: np.ndarray
    missing: np.ndarray
    members: np.ndarray
    children: np.ndarray
    roots: np.ndarray
    depth: int
    trees: np.ndarray
    weights: np.ndarray
    weighted: np.ndarray
    base: np.ndarray
    transform: str
    aggregate: str


@dataclass
class _Nodes:
    """Nodes in any order: inner ones with their children, leaves with their weights."""

    features: np.ndarray
    splits: np.ndarray
    modes: list[str]
    missing: np.ndarray
    sets: list[list[float]]
    children: list[tuple[int, int] | None]
    leaves: dict[int, list[tuple[int, float]]]
    roots: list[int]


def forest_of(operator: str, given: Mapping[str, Any]) -> Forest:
    """Read a forest from a node's attributes.

    Parameters
    ----------
    operator : str
        TreeEnsemble, TreeEnsembleClassifier or TreeEnsembleRegressor.
    given : mapping
        The node's attributes.

    Raises
    ------
    UnknownFormError
        If a kind of condition is unknown, or a tree has a cycle.
    """
    if operator == "TreeEnsemble":
        nodes, targets = _numbered(given), int(given.get("n_targets", 1))
        transform = _TRANSFORMS[given.get("post_transform", 0)]
        aggregate, base = _AGGREGATES[given.get("aggregate_function", 1)], np.zeros(0)
    else:
        kind = "class" if operator == "TreeEnsembleClassifier" else "target"
        labels = given.get("classlabels_int64s") or given.get("classlabels_strings") or []
        targets = len(labels) if kind == "class" else int(given.get("n_targets", 1))
        nodes = _named(given, kind)
        transform = given.get("post_transform", b"NONE").decode()
        aggregate = given.get("aggregate_function", b"SUM").decode()
        base = _array(given, "base_values")
    return _laid_out(nodes, targets, base, transform, aggregate)


def _array(given: Mapping[str, Any], name: str) -> np.ndarray:
    """Values of an attribute; those of its tensor form, which may be doubles, come first."""
    tensor = given.get(f"{name}_as_tensor")
    if tensor is not None:
        return numpy_helper.to_array(tensor).reshape(-1)
    return np.array(given.get(name, []), np.float32)


def _numbered(given: Mapping[str, Any]) -> _Nodes:
    """Nodes of TreeEnsemble, which numbers conditions and leaves separately."""
    modes = [int(each) for each in numpy_helper.to_array(given["nodes_modes"])]
    sets = _sets(given, [_MODES[each] == MEMBER for each in modes])
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
    # A tree of a single leaf is written as a root with that leaf as both children.
    return _Nodes(
        np.array(given["nodes_featureids"], np.int64),
        numpy_helper.to_array(given["nodes_splits"]).reshape(-1),
        [_MODES[each] for each in modes],
        np.array(tracked, bool),
        sets,
        [*zip(*sides, strict=True), *[None] * len(weights)],
        {inner + place: [(int(target), weight)] for place, (target, weight) in enumerate(entries)},
        [int(each) for each in given["tree_roots"]],
    )


def _sets(given: Mapping[str, Any], chosen: list[bool]) -> list[list[float]]:
    """The set of each condition, empty if it has none; in the attribute, NaN ends each set."""
    found: list[list[float]] = [[]]
    values = given.get("membership_values")
    for each in () if values is None else numpy_helper.to_array(values).reshape(-1):
        if np.isnan(each):
            found.append([])
        else:
            found[-1].append(float(each))
    following = iter(found)
    return [next(following, []) if each else [] for each in chosen]


def _named(given: Mapping[str, Any], kind: str) -> _Nodes:
    """Nodes of the older operators, which number nodes within their tree."""
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
        # Weights of inner nodes are never read.
        leaves.get(places[tree, number], []).append((int(target), weight))
    tracked = given.get("nodes_missing_value_tracks_true") or [0] * len(names)
    below = {place for pair in children if pair is not None for place in pair}
    return _Nodes(
        np.array(given["nodes_featureids"], np.int64),
        _array(given, "nodes_values"),
        modes,
        np.array(tracked, bool),
        [[] for _ in names],
        children,
        leaves,
        [place for place in range(len(names)) if place not in below],
    )


def _laid_out(
    nodes: _Nodes, targets: int, base: np.ndarray, transform: str, aggregate: str
) -> Forest:
    """Number conditions before leaves, and find each tree's depth and leaves."""
    inner = [place for place, pair in enumerate(nodes.children) if pair is not None]
    outer = [place for place, pair in enumerate(nodes.children) if pair is None]
    numbers = np.zeros(len(nodes.children), np.int64)
    numbers[inner + outer] = np.arange(len(numbers))
    children = np.array([nodes.children[place] for place in inner], np.int64).reshape(-1, 2)
    children, roots = numbers[children], numbers[np.array(nodes.roots, np.int64)]
    trees = np.zeros(len(numbers), np.int64)
    trees[roots] = np.arange(len(roots))
    depth, level = 0, roots[roots < len(inner)]
    while len(level):
        depth += 1
        if depth > len(inner):
            raise UnknownFormError("has a tree with a cycle")
        trees[children[level]] = trees[level][:, None]
        level = np.unique(children[level])
        level = level[level < len(inner)]
    entries = [nodes.leaves[place] for place in outer]
    dtype = np.result_type(*[weight for each in entries for _, weight in each] or [np.float32(0)])
    weights = np.zeros((len(outer), targets), dtype)
    weighted = np.zeros((len(outer), targets), bool)
    join = {"MIN": min, "MAX": max}.get(aggregate, add)
    for leaf, each in enumerate(entries):
        for target, weight in each:
            before = weights[leaf, target]
            weights[leaf, target] = join(before, weight) if weighted[leaf, target] else weight
            weighted[leaf, target] = True
    if targets == 1:
        # As in onnxruntime: for a single target, a leaf without a weight counts as zero.
        weighted[:] = True
    sets = [nodes.sets[place] for place in inner]
    members = np.full((len(inner), max(map(len, sets), default=0)), np.nan)
    for row, values in zip(members, sets, strict=True):
        row[: len(values)] = values
    return Forest(
        nodes.features[inner],
        nodes.splits[inner],
        np.array([nodes.modes[place] for place in inner]),
        nodes.missing[inner],
        members,
        children,
        roots,
        depth,
        trees[len(inner) :],
        weights,
        weighted,
        base,
        transform,
        aggregate,
    )

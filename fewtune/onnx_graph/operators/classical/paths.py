"""Decision paths of a forest, from the roots to the leaves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fewtune.onnx_graph.operators.classical.forest import Forest


@dataclass(frozen=True)
class DecisionPaths:
    """All paths from the roots of a forest to its leaves.

    Attributes
    ----------
    conditions, fulfilled : numpy.ndarray
        (paths, depth): the conditions on each path, and whether each is fulfilled. A shorter path
        repeats its last condition.
    leaves, trees : numpy.ndarray
        (paths,): the leaf and the tree of each path.
    """

    conditions: np.ndarray
    fulfilled: np.ndarray
    leaves: np.ndarray
    trees: np.ndarray


def decision_paths(forest: Forest, most: int) -> DecisionPaths | None:
    """All decision paths of a forest.

    Parameters
    ----------
    forest : Forest
    most : int
        Most conditions on all paths together, each as long as the longest.

    Returns
    -------
    paths : DecisionPaths or None
        None for a larger forest, and for one that has trees of a single leaf beside others.
    """
    found: list[list[tuple[int, bool]]] = []
    leaves, trees, inner = [], [], len(forest.children)
    if forest.depth and (forest.roots >= inner).any():
        return None
    for tree, root in enumerate(forest.roots.tolist()):
        open_nodes: list[tuple[int, list[tuple[int, bool]]]] = [(root, [])]
        while open_nodes:
            node, path = open_nodes.pop()
            if node < inner:
                for child, fulfilled in zip(forest.children[node], (True, False), strict=True):
                    open_nodes.append((int(child), [*path, (node, fulfilled)]))
                continue
            if (len(found) + 1) * forest.depth > most:
                return None
            found.append([*path, *path[-1:] * (forest.depth - len(path))])
            leaves.append(node - inner)
            trees.append(tree)
    steps = np.array(found, np.int64).reshape(len(found), forest.depth, 2)
    return DecisionPaths(
        steps[..., 0], steps[..., 1].astype(bool), np.array(leaves), np.array(trees)
    )

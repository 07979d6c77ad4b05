"""All ways through a forest, from its roots to its leaves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fewtune.onnx_graph.operators.classical.forest import Forest


@dataclass(frozen=True)
class Ways:
    """All ways from the roots of a forest to its leaves.

    Attributes
    ----------
    conditions, fulfilled : numpy.ndarray
        (ways, depth): the conditions on each way, and whether each is fulfilled. A shorter way
        repeats its last condition.
    leaves, trees : numpy.ndarray
        Of each way.
    """

    conditions: np.ndarray
    fulfilled: np.ndarray
    leaves: np.ndarray
    trees: np.ndarray


def ways_of(forest: Forest, most: int) -> Ways | None:
    """All ways of a forest.

    Parameters
    ----------
    forest : Forest
    most : int
        Conditions on all ways, each as long as the longest, at most.

    Returns
    -------
    ways : Ways or None
        None of a larger forest, and where a tree of a single leaf is beside others.
    """
    found: list[list[tuple[int, bool]]] = []
    leaves, trees, inner = [], [], len(forest.children)
    if forest.depth and (forest.roots >= inner).any():
        return None
    for tree, root in enumerate(forest.roots.tolist()):
        open_nodes: list[tuple[int, list[tuple[int, bool]]]] = [(root, [])]
        while open_nodes:
            place, way = open_nodes.pop()
            if place < inner:
                for child, fulfilled in zip(forest.children[place], (True, False), strict=True):
                    open_nodes.append((int(child), [*way, (place, fulfilled)]))
                continue
            if (len(found) + 1) * forest.depth > most:
                return None
            found.append([*way, *way[-1:] * (forest.depth - len(way))])
            leaves.append(place - inner)
            trees.append(tree)
    steps = np.array(found, np.int64).reshape(len(found), forest.depth, 2)
    return Ways(steps[..., 0], steps[..., 1].astype(bool), np.array(leaves), np.array(trees))

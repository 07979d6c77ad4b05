"""A graph convolutional network in NumPy: graphs in, one score each out.

Method: Kipf and Welling 2017, with the mean over neighbours and each node's own features kept
apart, two layers, and the sum over a graph's nodes read out. Trained by Adam on squared error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import sparse

from fewtune.util.network import Adam

_HIDDEN = 32
_RATE = 0.01
_STEPS = 150


class Graph(NamedTuple):
    """One program.

    Attributes
    ----------
    nodes : ndarray, (nodes, features)
    edges : ndarray, (edges, 2), int
        Places of nodes; each joins both ways.
    """

    nodes: np.ndarray
    edges: np.ndarray


class _Packed(NamedTuple):
    """Many graphs as one that is not connected; ``pool`` averages the nodes of each."""

    nodes: np.ndarray
    mean: sparse.csr_matrix
    pool: sparse.csr_matrix


class GraphNetwork:
    """Scores of graphs.

    Parameters
    ----------
    features : int
        Of a node.
    seed : int
    """

    def __init__(self, features: int, seed: int) -> None:
        random = np.random.default_rng(seed)

        def weights(inputs: int, outputs: int) -> np.ndarray:
            return random.normal(0, inputs**-0.5, (inputs, outputs))

        self._weights = [
            weights(features, _HIDDEN),
            weights(features, _HIDDEN),
            weights(_HIDDEN, _HIDDEN),
            weights(_HIDDEN, _HIDDEN),
            weights(_HIDDEN, 1) * 0.1,
            np.zeros(1),
        ]
        self._adam = Adam(self._weights, _RATE)
        self._shift, self._scale = np.zeros(features), np.ones(features)

    def train(self, graphs: Sequence[Graph], targets: np.ndarray, steps: int = _STEPS) -> None:
        """Go on learning.

        Parameters
        ----------
        graphs : sequence of Graph
        targets : ndarray, (graphs,)
        steps : int
            Of Adam, each over all graphs.
        """
        nodes = np.concatenate([graph.nodes for graph in graphs])
        spread = nodes.std(axis=0)
        self._shift, self._scale = nodes.mean(axis=0), np.where(spread > 0, spread, 1.0)
        packed = self._pack(graphs)
        for _ in range(steps):
            self._step(packed, targets)

    def score(self, graphs: Sequence[Graph]) -> np.ndarray:
        """Scores, (graphs,)."""
        return self._forward(self._pack(graphs))[-1]

    def _pack(self, graphs: Sequence[Graph]) -> _Packed:
        sizes = [len(graph.nodes) for graph in graphs]
        starts = np.cumsum([0, *sizes])
        nodes = np.concatenate([graph.nodes for graph in graphs])
        edges = np.concatenate(
            [graph.edges + start for graph, start in zip(graphs, starts, strict=False)]
        )
        both = np.concatenate([edges, edges[:, ::-1]])
        joined = sparse.csr_matrix(
            (np.ones(len(both)), (both[:, 0], both[:, 1])), shape=(len(nodes), len(nodes))
        )
        degrees = np.maximum(1.0, np.asarray(joined.sum(axis=1)).ravel())
        owners = np.repeat(np.arange(len(graphs)), sizes)
        pool = sparse.csr_matrix(
            (1.0 / np.array(sizes)[owners], (owners, np.arange(len(nodes)))),
            shape=(len(graphs), len(nodes)),
        )
        mean = sparse.diags(1.0 / degrees) @ joined
        return _Packed((nodes - self._shift) / self._scale, mean.tocsr(), pool)

    def _forward(self, packed: _Packed) -> list[np.ndarray]:
        own, near, own_again, near_again, out, bias = self._weights
        around = packed.mean @ packed.nodes
        first = np.maximum(0.0, packed.nodes @ own + around @ near)
        around_first = packed.mean @ first
        second = np.maximum(0.0, first @ own_again + around_first @ near_again)
        pooled = packed.pool @ second
        return [around, first, around_first, second, pooled, (pooled @ out + bias)[:, 0]]

    def _step(self, packed: _Packed, targets: np.ndarray) -> None:
        own_again, near_again, out = self._weights[2], self._weights[3], self._weights[4]
        around, first, around_first, second, pooled, scores = self._forward(packed)
        error = (2 * (scores - targets) / len(targets))[:, None]
        by_second = (packed.pool.T @ (error @ out.T)) * (second > 0)
        by_first = by_second @ own_again.T + packed.mean.T @ (by_second @ near_again.T)
        by_first *= first > 0
        self._adam.step(
            [
                packed.nodes.T @ by_first,
                around.T @ by_first,
                first.T @ by_second,
                around_first.T @ by_second,
                pooled.T @ error,
                error.sum(axis=0),
            ]
        )

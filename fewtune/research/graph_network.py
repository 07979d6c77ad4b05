"""A graph convolutional network in NumPy: graphs in, one score each out.

Method: Kipf and Welling 2017, two layers, with the mean over neighbours and each node's own
features kept apart. The readout is the mean of each kind of node; a hidden layer turns it into a
score. The network learns the differences between graphs of one group. A node's features are its
differences from the mean node of its kind in the group, and the loss ignores a group's mean. So
what it learns from some groups holds for others. Trained by Adam.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import sparse

from fewtune.research.network import Adam

_HIDDEN = 32
_RATE, _DECAY = 0.01, 1e-4
# Graphs of a step, about; of one group, more than that are several groups.
_BATCH = 128
# The order of fast ones matters most: one at half the best speed gets seven tenths of the weight.
_KEENNESS = 0.5


class Graph(NamedTuple):
    """One program.

    Attributes
    ----------
    nodes : ndarray, (nodes, features)
    edges : ndarray, (edges, 2), int
        Places of nodes; each joins both ways.
    kinds : ndarray, (nodes,), int
    """

    nodes: np.ndarray
    edges: np.ndarray
    kinds: np.ndarray


class _Packed(NamedTuple):
    """Many graphs as one that is not connected; ``pool`` averages the nodes of each and kind."""

    nodes: np.ndarray
    mean: sparse.csr_matrix
    mean_back: sparse.csr_matrix
    pool: sparse.csr_matrix
    pool_back: sparse.csr_matrix
    graphs: int


class _Batch(NamedTuple):
    """Graphs with their targets; ``groups`` says whose each is, ``sizes`` how many a group has."""

    packed: _Packed
    targets: np.ndarray
    groups: np.ndarray
    sizes: np.ndarray

    def centred(self, values: np.ndarray) -> np.ndarray:
        """Values less the mean of their group."""
        means = np.bincount(self.groups, values, minlength=len(self.sizes)) / self.sizes
        return values - means[self.groups]


class GraphNetwork:
    """Scores of graphs.

    Parameters
    ----------
    features, kinds : int
        Of a node, and of nodes.
    seed : int
    """

    def __init__(self, features: int, kinds: int, seed: int) -> None:
        random = np.random.default_rng(seed)

        def weights(size: int, outputs: int) -> np.ndarray:
            return random.normal(0, size**-0.5, (size, outputs)).astype("float32")

        def bias() -> np.ndarray:
            return np.zeros(_HIDDEN, dtype="float32")

        self._kinds = kinds
        inputs = features + kinds
        self._weights = [
            *(weights(inputs, _HIDDEN), weights(inputs, _HIDDEN), bias()),
            *(weights(_HIDDEN, _HIDDEN), weights(_HIDDEN, _HIDDEN), bias()),
            *(weights(kinds * _HIDDEN, _HIDDEN), bias()),
            # Small: at first nothing is preferred.
            weights(_HIDDEN, 1) * np.float32(0.1),
        ]
        self._adam = Adam(self._weights, _RATE)
        self._random = np.random.default_rng([seed, 1])
        self._scale = np.ones(features, dtype="float32")

    def train(self, groups: Sequence[tuple[Sequence[Graph], np.ndarray]], steps: int) -> None:
        """Go on learning.

        Parameters
        ----------
        groups : sequence of (sequence of Graph, ndarray)
            Graphs that are compared with each other, and their targets.
        steps : int
            Of Adam, each over a batch; they get shorter towards the end.
        """
        nodes = np.concatenate([self._centred(graphs) for graphs, _ in groups])
        spread = nodes.std(axis=0)
        # What hardly varies here says nothing, and may be far off elsewhere.
        self._scale = np.where(spread > 1e-6, spread, np.inf).astype("float32")
        batches = self._batches(groups)
        order: list[int] = []
        for step in range(steps):
            order = order or self._random.permutation(len(batches)).tolist()
            self._adam.rate = _RATE * (1 - step / steps)
            self._step(batches[order.pop()])

    def score(self, graphs: Sequence[Graph]) -> np.ndarray:
        """Scores of graphs of one group, (graphs,)."""
        return self._forward(self._pack([graphs]))[-1].astype(float)

    def _batches(self, groups: Sequence[tuple[Sequence[Graph], np.ndarray]]) -> list[_Batch]:
        parts = [
            (graphs[start : start + _BATCH], np.asarray(targets)[start : start + _BATCH])
            for graphs, targets in groups
            for start in range(0, len(graphs), _BATCH)
        ]
        found: list[_Batch] = []
        held: list[tuple[Sequence[Graph], np.ndarray]] = []
        for place in self._random.permutation(len(parts)):
            if held and sum(len(g) for g, _ in held) + len(parts[place][0]) > _BATCH:
                found.append(self._batch(held))
                held = []
            held.append(parts[place])
        return [*found, self._batch(held)]

    def _batch(self, parts: Sequence[tuple[Sequence[Graph], np.ndarray]]) -> _Batch:
        sizes = np.array([len(graphs) for graphs, _ in parts])
        return _Batch(
            self._pack([graphs for graphs, _ in parts]),
            np.concatenate([targets for _, targets in parts]).astype("float32"),
            np.repeat(np.arange(len(parts)), sizes),
            sizes,
        )

    def _centred(self, group: Sequence[Graph]) -> np.ndarray:
        """Nodes of a group's graphs, less the mean of their kind."""
        nodes = np.concatenate([graph.nodes for graph in group])
        kinds = np.concatenate([graph.kinds for graph in group])
        ones, places = np.ones(len(nodes), dtype="float32"), np.arange(len(nodes))
        each = sparse.csr_matrix((ones, (kinds, places)), shape=(self._kinds, len(nodes)))
        counts = np.maximum(1, np.bincount(kinds, minlength=self._kinds))[:, None]
        means = (each @ nodes) / counts
        return np.asarray(nodes - means[kinds], dtype="float32")

    def _pack(self, groups: Sequence[Sequence[Graph]]) -> _Packed:
        nodes = np.concatenate([self._centred(group) for group in groups])
        graphs = [graph for group in groups for graph in group]
        sizes = [len(graph.nodes) for graph in graphs]
        starts = np.cumsum([0, *sizes])
        edges = np.concatenate(
            [graph.edges + start for graph, start in zip(graphs, starts, strict=False)]
        )
        both = np.concatenate([edges, edges[:, ::-1]])
        ones = np.ones(len(both), dtype="float32")
        joined = sparse.csr_matrix((ones, (both[:, 0], both[:, 1])), shape=(len(nodes),) * 2)
        degrees = np.maximum(1.0, np.asarray(joined.sum(axis=1)).ravel()).astype("float32")
        mean = (sparse.diags(1 / degrees) @ joined).tocsr()
        owners = np.repeat(np.arange(len(graphs)), sizes)
        kinds = np.concatenate([graph.kinds for graph in graphs])
        slots = owners * self._kinds + kinds
        counts = np.maximum(1, np.bincount(slots, minlength=len(graphs) * self._kinds))
        pool = sparse.csr_matrix(
            ((1 / counts[slots]).astype("float32"), (slots, np.arange(len(nodes)))),
            shape=(len(graphs) * self._kinds, len(nodes)),
        )
        one_hot = np.eye(self._kinds, dtype="float32")[kinds]
        scaled = np.concatenate([nodes / self._scale, one_hot], axis=1)
        return _Packed(scaled, mean, mean.T.tocsr(), pool, pool.T.tocsr(), len(graphs))

    def _forward(self, packed: _Packed) -> list[np.ndarray]:
        own, near, bias, own_again, near_again, bias_again, read, read_bias, out = self._weights
        around = packed.mean @ packed.nodes
        first = np.maximum(0, packed.nodes @ own + around @ near + bias)
        around_first = packed.mean @ first
        second = np.maximum(0, first @ own_again + around_first @ near_again + bias_again)
        pooled = (packed.pool @ second).reshape(packed.graphs, -1)
        third = np.maximum(0, pooled @ read + read_bias)
        return [around, first, around_first, second, pooled, third, (third @ out)[:, 0]]

    def _step(self, batch: _Batch) -> None:
        packed = batch.packed
        own_again, near_again, read, out = (self._weights[place] for place in (3, 4, 6, 8))
        around, first, around_first, second, pooled, third, scores = self._forward(packed)
        off = batch.centred(scores - batch.targets) * np.exp(_KEENNESS * batch.targets)
        error = (2 * batch.centred(off) / len(off)).astype("float32")[:, None]
        by_third = (error @ out.T) * (third > 0)
        spread = (by_third @ read.T).reshape(-1, _HIDDEN)
        by_second = (packed.pool_back @ spread) * (second > 0)
        by_first = by_second @ own_again.T + packed.mean_back @ (by_second @ near_again.T)
        by_first *= first > 0
        gradients = [
            *(packed.nodes.T @ by_first, around.T @ by_first, by_first.sum(axis=0)),
            *(first.T @ by_second, around_first.T @ by_second, by_second.sum(axis=0)),
            *(pooled.T @ by_third, by_third.sum(axis=0)),
            third.T @ error,
        ]
        self._adam.step([g + _DECAY * w for g, w in zip(gradients, self._weights, strict=True)])

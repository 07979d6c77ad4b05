"""A graph convolutional network as a cost model, in NumPy.

Method: Kipf and Welling 2017, two layers, with the mean over neighbors and each node's own features
kept apart. The readout is the mean of each kind of node; a hidden layer turns it into a score. A
node's features are its differences from the mean node of its kind in a group of graphs, and the
loss ignores a group's mean: so what it learns from some groups holds for others. Trained by Adam.

The label of a candidate is the logarithm of its speed relative to the best of its task. Each
training starts from the network's present weights.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tvm_ffi
from scipy import sparse

from fewtune.research.network import Adam
from fewtune.runtime.tvm import ms, tvm

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


# Of a node: loop, block or buffer; of a loop its kind; of a store MetaSchedule's features.
KINDS = 4
_LOOP, _BLOCK, _BUFFER, _STORE = range(KINDS)
_LOOP_KINDS, _STORE_FEATURES = 5, 164
_OWN = KINDS + _LOOP_KINDS + 5
WIDTH = _OWN + _STORE_FEATURES
_EXTENT, _OUTER, _UNROLL, _DEPTH, _BYTES = range(KINDS + _LOOP_KINDS, _OWN)
# Features are logarithms; some of counts that are none.
_LARGEST = 40.0
_PRAGMA = "pragma_auto_unroll_max_step"


def program_graph(module: tvm.IRModule, stores: np.ndarray) -> Graph:
    """The graph of a schedule's module.

    Parameters
    ----------
    module : IRModule
        With one function, ``main``.
    stores : ndarray, (stores, 164)
        What MetaSchedule's extractor says of it.
    """
    walk = _Walk()
    walk.visit(module["main"].body, -1, 0.0, 0, 0.0)
    own = len(walk.nodes)
    nodes = np.zeros((own + len(stores), WIDTH), dtype="float32")
    nodes[:own, :_OWN] = walk.nodes
    nodes[own:, _STORE] = 1.0
    nodes[own:, _OWN:] = np.minimum(stores, _LARGEST)
    joined = [(0, own + place) for place in range(len(stores))]
    edges = np.array(walk.edges + joined, dtype=int).reshape(-1, 2)
    return Graph(nodes, edges, nodes[:, :KINDS].argmax(axis=1))


class _Walk:
    """Gathers nodes and edges from the outermost loop inwards."""

    def __init__(self) -> None:
        self.nodes: list[list[float]] = []
        self.edges: list[tuple[int, int]] = []
        self._buffers: dict[Any, int] = {}

    def visit(self, statement: Any, parent: int, outer: float, depth: int, unroll: float) -> None:
        """Take in a statement; ``outer`` is the logarithm of how often it runs."""
        kind = type(statement).__name__
        if kind == "For":
            extent = math.log2(max(1, _constant(statement.extent)))
            marks = dict(statement.annotations) if statement.annotations else {}
            unroll = math.log2(1 + int(marks.get(_PRAGMA, 0))) or unroll
            if extent > 0:
                node = self._node(_LOOP, outer, depth, unroll, parent)
                self.nodes[node][KINDS + min(int(statement.kind), _LOOP_KINDS - 1)] = 1.0
                self.nodes[node][_EXTENT] = extent
                parent = node
            self.visit(statement.body, parent, outer + extent, depth + 1, unroll)
        elif kind == "SeqStmt":
            for each in statement.seq:
                self.visit(each, parent, outer, depth, unroll)
        elif kind == "SBlockRealize":
            self._block(statement.block, parent, outer, depth, unroll)
        elif hasattr(statement, "body"):
            self.visit(statement.body, parent, outer, depth, unroll)

    def _block(self, block: Any, parent: int, outer: float, depth: int, unroll: float) -> None:
        marks = dict(block.annotations) if block.annotations else {}
        unroll = math.log2(1 + int(marks.get(_PRAGMA, 0))) or unroll
        node = self._node(_BLOCK, outer, depth, unroll, parent)
        for region in [*block.reads, *block.writes]:
            self.edges.append((node, self._buffer(region.source)))
        self.visit(block.body, node, outer, depth, unroll)

    def _buffer(self, buffer: Any) -> int:
        name = str(buffer.name)
        if name not in self._buffers:
            node = self._node(_BUFFER, 0.0, 0, 0.0, -1)
            elements = math.prod(max(1, _constant(extent)) for extent in buffer.shape)
            self.nodes[node][_BYTES] = math.log2(elements)
            self._buffers[name] = node
        return self._buffers[name]

    def _node(self, kind: int, outer: float, depth: int, unroll: float, parent: int) -> int:
        row = [0.0] * _OWN
        row[kind] = 1.0
        row[_OUTER], row[_DEPTH], row[_UNROLL] = outer, float(depth), unroll
        self.nodes.append(row)
        node = len(self.nodes) - 1
        if parent >= 0:
            self.edges.append((parent, node))
        return node


def _constant(expression: Any) -> int:
    """An extent as an integer; 1 where it is none."""
    value = getattr(expression, "value", expression)
    return int(value) if isinstance(value, int) else 1


_WARM_UP = 16
# Networks of different initial weights err elsewhere: the score is their mean.
_NETWORKS = 3
# It is trained again when samples have grown by this part, on at most so many of the latest.
_GROWTH, _MOST = 0.2, 512
# Speeds below this part of the best count as this part.
_SLOWEST = 0.1
_STEPS, _STEPS_AGAIN = 150, 60


class GraphModel:
    """Rates candidates by their programs' graphs; one for all tasks of a run.

    Parameters
    ----------
    seed : int
        Of the networks' first weights.
    """

    def __init__(self, seed: int = 43) -> None:
        self._networks = [GraphNetwork(WIDTH, KINDS, seed + each) for each in range(_NETWORKS)]
        self._extractor = ms.feature_extractor.PerStoreFeature()
        self._groups: dict[Hashable, tuple[list[Graph], list[float]]] = {}
        self._samples = self._fitted = 0

    @property
    def trained(self) -> bool:
        """Whether scores mean anything."""
        return self._samples >= _WARM_UP

    def features(self, context: Any, candidates: Sequence[Any]) -> list[Graph]:
        """Graphs of candidates."""
        stores = self._extractor.extract_from(context, candidates)
        return [
            program_graph(candidate.sch.mod, rows.numpy())
            for candidate, rows in zip(candidates, stores, strict=True)
        ]

    def learn(
        self, module: tvm.IRModule, features: Sequence[Graph], times_s: Sequence[float]
    ) -> None:
        """Take in measured candidates of one task; seconds are infinite for one that failed."""
        known = self._groups.setdefault(tvm_ffi.structural_hash(module), ([], []))
        known[0].extend(features)
        known[1].extend(times_s)
        self._samples += len(features)

    def score(self, features: Sequence[Graph]) -> np.ndarray:
        """Scores of candidates, (candidates,), higher is faster; only of a trained model."""
        if self._samples >= max(_WARM_UP, (1 + _GROWTH) * self._fitted):
            labelled = _labelled([(g[-_MOST:], t[-_MOST:]) for g, t in self._groups.values()])
            for each in self._networks if labelled else ():
                each.train(labelled, _STEPS_AGAIN if self._fitted else _STEPS)
            self._fitted = self._samples
        return np.mean([each.score(features) for each in self._networks], axis=0)


def _labelled(
    groups: Sequence[tuple[Sequence[Graph], Sequence[float]]],
) -> list[tuple[Sequence[Graph], np.ndarray]]:
    """Graphs of all tasks, and the logarithms of their speeds relative to their task's best."""
    found = []
    for held, times_s in groups:
        best_s = min(times_s, default=np.inf)
        if np.isfinite(best_s):
            speeds = np.log(np.maximum(best_s / np.array(times_s), _SLOWEST))
            found.append((held, speeds))
    return found

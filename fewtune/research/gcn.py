"""A graph convolutional network as a cost model: the simplified one, fitted in one step.

Method: Wu et al. 2019, "Simplifying Graph Convolutional Networks". Without functions between its
layers, a network of graph convolutions averages each node's features over its neighborhood, once a
layer, and only the readout is learnt. Here the readout is the mean of each kind of node. Kernel
ridge regression turns it into a score. Features and targets are differences from the means of
their task: so what is learnt from some tasks holds for others.

The label of a candidate is the logarithm of its speed relative to the best of its task.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.spatial.distance import cdist

from fewtune.runtime.tvm import tvm
from fewtune.search.cost_model import LearntModel

# How often features are averaged over neighbors.
_LAYERS = 2
# Of a node: loop, block, buffer or store; of a loop its kind; of a store MetaSchedule's features.
_LOOP, _BLOCK, _BUFFER, _STORE = range(4)
_LOOP_KINDS, _STORE_FEATURES = 5, 164
_EXTENT, _OUTER, _UNROLL, _DEPTH, _BYTES = range(4 + _LOOP_KINDS, 9 + _LOOP_KINDS)
_OWN = _BYTES + 1
# Features are logarithms; some of counts that are none.
_LARGEST = 40.0
_PRAGMA = "pragma_auto_unroll_max_step"


def program_graph(module: tvm.IRModule, stores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The nodes of a schedule's module, (nodes, features), and which of them are neighbors.

    ``stores`` is what MetaSchedule's extractor says of it, (stores, 164).
    """
    walk = _Walk()
    walk.visit(module["main"].body, -1, 0.0, 0, 0.0)
    own = len(walk.nodes)
    nodes = np.zeros((own + len(stores), _OWN + _STORE_FEATURES))
    nodes[:own, :_OWN] = walk.nodes
    nodes[own:, _STORE] = 1.0
    nodes[own:, _OWN:] = np.minimum(stores, _LARGEST)
    joined = np.zeros((len(nodes), len(nodes)))
    for one, other in [*walk.edges, *((0, own + place) for place in range(len(stores)))]:
        joined[one, other] = joined[other, one] = 1.0
    return nodes, joined


class _Walk:
    """Gathers nodes and edges from the outermost loop inwards."""

    def __init__(self) -> None:
        self.nodes: list[list[float]] = []
        self.edges: list[tuple[int, int]] = []
        self._buffers: dict[str, int] = {}

    def visit(self, statement: Any, parent: int, outer: float, depth: int, unroll: float) -> None:
        """Take in a statement; ``outer`` is the logarithm of how often it runs."""
        kind = type(statement).__name__
        if kind == "SeqStmt":
            for each in statement.seq:
                self.visit(each, parent, outer, depth, unroll)
            return
        if kind == "SBlockRealize":
            statement = statement.block
        marks = dict(getattr(statement, "annotations", None) or {})
        unroll = math.log2(1 + int(marks.get(_PRAGMA, 0))) or unroll
        if kind == "SBlockRealize":
            parent = self._node(_BLOCK, outer, depth, unroll, parent)
            for region in [*statement.reads, *statement.writes]:
                self.edges.append((parent, self._buffer(region.source)))
        elif kind == "For":
            extent = math.log2(max(1, _constant(statement.extent)))
            if extent > 0:
                parent = self._node(_LOOP, outer, depth, unroll, parent)
                self.nodes[parent][4 + min(int(statement.kind), _LOOP_KINDS - 1)] = 1.0
                self.nodes[parent][_EXTENT] = extent
            outer, depth = outer + extent, depth + 1
        if hasattr(statement, "body"):
            self.visit(statement.body, parent, outer, depth, unroll)

    def _buffer(self, buffer: Any) -> int:
        name = str(buffer.name)
        if name not in self._buffers:
            self._buffers[name] = self._node(_BUFFER, 0.0, 0, 0.0, -1)
            elements = math.prod(max(1, _constant(extent)) for extent in buffer.shape)
            self.nodes[-1][_BYTES] = math.log2(elements)
        return self._buffers[name]

    def _node(self, kind: int, outer: float, depth: int, unroll: float, parent: int) -> int:
        row = [0.0] * _OWN
        row[kind] = 1.0
        row[_OUTER], row[_DEPTH], row[_UNROLL] = outer, float(depth), unroll
        self.nodes.append(row)
        if parent >= 0:
            self.edges.append((parent, len(self.nodes) - 1))
        return len(self.nodes) - 1


def _constant(expression: Any) -> int:
    """An extent as an integer; 1 where it is none."""
    value = getattr(expression, "value", expression)
    return value if isinstance(value, int) else 1


def _readout(nodes: np.ndarray, joined: np.ndarray) -> np.ndarray:
    """A graph as one row: each layer's features, their mean over the nodes of each kind."""
    kinds = nodes[:, : _STORE + 1]
    pool = kinds.T / np.maximum(1.0, kinds.sum(axis=0))[:, None]
    around = joined / np.maximum(1.0, joined.sum(axis=1))[:, None]
    layers = [nodes]
    for _ in range(_LAYERS):
        layers.append(around @ layers[-1])
    return np.concatenate([(pool @ layer).ravel() for layer in layers])


# It is fitted on at most so many samples of each task.
_MOST = 512
# Speeds below this part of the best count as this part.
_SLOWEST = 0.1
# The order of fast ones matters most: one at half the best speed gets seven tenths of the weight.
_KEENNESS = 0.5
# Variance of what no feature explains, and the length scale, in the spread of all features.
_NOISE, _LENGTH, _LEAST_SPREAD = 0.1, 2.0, 1e-6


class GraphModel(LearntModel):
    """Rates candidates by their programs' graphs; one for all tasks of a run."""

    def features(self, context: Any, candidates: Sequence[Any]) -> list[np.ndarray]:
        """Candidates' graphs, a row each."""
        stores = self.extractor.extract_from(context, candidates)
        return [
            _readout(*program_graph(candidate.sch.mod, rows.numpy()))
            for candidate, rows in zip(candidates, stores, strict=True)
        ]

    def rated(self, features: Sequence[np.ndarray]) -> np.ndarray:
        rows = np.stack(features)
        return self._alike((rows - rows.mean(axis=0)) / self._scale) @ self._weights

    def fit(self) -> None:
        rows, targets = [], []
        for features, times_s in self.groups.values():
            kept, kept_s = np.stack(features[-_MOST:]), np.array(times_s[-_MOST:])
            best_s = min(times_s)
            speeds = np.log(np.maximum(best_s / kept_s if best_s < np.inf else 0.0, _SLOWEST))
            rows.append(kept - kept.mean(axis=0))
            targets.append(np.broadcast_to(speeds, kept_s.shape))
        self._rows = np.concatenate(rows)
        spread = self._rows.std(axis=0)
        varying = int(np.count_nonzero(spread > _LEAST_SPREAD))
        # What hardly varies here says nothing, and may be far off elsewhere.
        self._scale = np.where(spread > _LEAST_SPREAD, spread, np.inf) * math.sqrt(max(1, varying))
        self._rows /= self._scale
        noise = _NOISE * np.exp(-_KEENNESS * np.concatenate(targets))
        centred = np.concatenate([each - each.mean() for each in targets])
        self._weights = np.linalg.solve(self._alike(self._rows) + np.diag(noise), centred)

    def _alike(self, rows: np.ndarray) -> np.ndarray:
        """Covariance of rows with those that were learnt (squared exponential)."""
        return np.exp(-cdist(rows, self._rows, "sqeuclidean") / (2 * _LENGTH**2))

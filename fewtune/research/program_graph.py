"""A scheduled program as a graph: loops, blocks, buffers and stores are nodes.

A loop is joined to what stands in it, a block to the buffers that it reads and writes. What a node
says is in logarithms: how often it runs, how long a loop is, how large a buffer. A store is one of
the lowered program, with what MetaSchedule's features say of it; which block it came of they do not
say, so that it is joined to the outermost.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fewtune.research.graph_network import Graph
from fewtune.runtime.tvm import tvm

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

"""A scheduled program as a graph: loops, blocks and buffers are nodes.

A loop is joined to what stands in it, a block to the buffers that it reads and writes. What a node
says is in logarithms: how often it runs, how long a loop is, how large a buffer.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fewtune.graph_model.network import Graph
from fewtune.runtime.tvm import tvm

# Of a node: loop, block or buffer; of a loop its kind.
_KINDS = 3
_LOOP_KINDS = 5
WIDTH = _KINDS + _LOOP_KINDS + 5
_LOOP, _BLOCK, _BUFFER = range(_KINDS)
_EXTENT, _OUTER, _UNROLL, _DEPTH, _BYTES = range(_KINDS + _LOOP_KINDS, WIDTH)
_PRAGMA = "pragma_auto_unroll_max_step"


def program_graph(module: tvm.IRModule) -> Graph:
    """The graph of a schedule's module.

    Parameters
    ----------
    module : IRModule
        With one function, ``main``.
    """
    walk = _Walk()
    walk.visit(module["main"].body, -1, 0.0, 0, 0.0)
    edges = np.array(walk.edges, dtype=int).reshape(-1, 2)
    return Graph(np.array(walk.nodes, dtype="float32"), edges)


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
                self.nodes[node][_KINDS + min(int(statement.kind), _LOOP_KINDS - 1)] = 1.0
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
        row = [0.0] * WIDTH
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

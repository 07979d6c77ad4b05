"""What a walk through a quantised graph knows: of each float tensor, what it is in integers."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto

from fewtune.onnx_graph.graph import nested_graphs
from fewtune.onnx_graph.integers.affine import Bytes, Scaled, floats_of, scaled_bytes
from fewtune.onnx_graph.integers.weights import Dequantised
from fewtune.onnx_graph.operators.builder import GraphBuilder

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
_SIGNED = 128


class Walk:
    """Keeps tensors back until an operator asks for them.

    Parameters
    ----------
    model : ModelProto
        As `fewtune.onnx_graph.integers.rewrite.integers` takes it.

    Attributes
    ----------
    graph : GraphBuilder
        The rewritten graph.
    floats : dict
        Float tensors that are kept back, by name.
    weights : dict
        Dequantised constants, and the nodes that compute them.
    unsigned : dict of (str, bool)
        Quantised tensors by name: the unsigned one that holds them, and whether they are signed.
    readers : dict of list
        The nodes that read a tensor; None stands for the caller, who reads an output.
    """

    def __init__(self, model: ModelProto) -> None:
        self.graph = GraphBuilder(model, {})
        self.floats: dict[str, Bytes | Scaled] = {}
        self.weights: dict[str, tuple[Dequantised, NodeProto]] = {}
        self.unsigned: dict[str, tuple[str, bool]] = {}
        self.written: set[str] = set()
        self.readers: dict[str, list[NodeProto | None]] = {}
        for node in model.graph.node:
            for name in read_by(node):
                self.readers.setdefault(name, []).append(node)
        for value in model.graph.output:
            self.readers.setdefault(value.name, []).append(None)

    def write(self, name: str) -> None:
        """See that the graph has a tensor that the walk has kept back."""
        if name in self.written:
            return
        graph = self.graph
        if name in self.floats:
            floats_of(graph, self.floats[name], name)
        elif name in self.weights:
            graph.add(self.weights[name][1], {})
        elif name in self.unsigned:
            found, signed = self.unsigned[name]
            if signed:
                wide = graph.cast(found, TensorProto.INT32)
                moved = graph.op("Sub", [wide, graph.constant(np.int32(_SIGNED))])
                graph.cast(moved, TensorProto.INT8, name)
            elif found != name:
                graph.op("Identity", [found], name)
        else:
            return
        self.written.add(name)

    def only_read_by_quantisers(self, name: str) -> bool:
        """Whether every operator that reads a tensor quantises it."""
        readers = self.readers.get(name, [])
        return all(node is not None and node.op_type == QUANTIZE for node in readers)

    def keep(self, name: str, value: Bytes | Scaled) -> bool:
        """Keep a float tensor back."""
        self.floats[name] = value
        shape = self.graph.shape(name)
        if shape is not None:
            kind = TensorProto.UINT8 if isinstance(value, Bytes) else 0
            self.graph.declare(value.name, kind or self.graph.element_type(value.name), shape)
        return True

    def bytes_of(self, name: str) -> Bytes | None:
        """The bytes that a float tensor was dequantised from, where it was."""
        found = self.floats.get(name)
        return found if isinstance(found, Bytes) else None

    def scaled(self, name: str) -> Scaled | None:
        """A float tensor that nothing else needs as floats."""
        found = self.floats.get(name)
        if isinstance(found, Bytes):
            return scaled_bytes(found)
        readers = self.readers.get(name, [])
        # More readers than one: each would compute it anew.
        return found if found is not None and len(readers) <= 1 else None

    def unsigned_of(self, name: str, element_type: int) -> str:
        """The unsigned tensor that holds a quantised one, 128 added to signed bytes."""
        if name in self.unsigned:
            return self.unsigned[name][0]
        if element_type == TensorProto.UINT8:
            return name
        graph = self.graph
        wide = graph.cast(name, TensorProto.INT32)
        moved = graph.op("Add", [wide, graph.constant(np.int32(_SIGNED))])
        found = graph.cast(moved, TensorProto.UINT8)
        self.unsigned[name] = (found, True)
        self.written.add(name)
        return found


def read_by(node: NodeProto) -> list[str]:
    """What a node and the graphs nested in it read."""
    names = [name for name in node.input if name]
    for graph in nested_graphs(node):
        for inner in graph.node:
            names += read_by(inner)
        names += [value.name for value in graph.output]
    return names

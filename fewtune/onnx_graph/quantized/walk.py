"""State of the pass over a quantized graph: the integer form of each float tensor."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto

from fewtune.onnx_graph.operators.builder import GraphBuilder
from fewtune.onnx_graph.quantized.affine import Bytes, Scaled, floats_of, write_dequantized
from fewtune.onnx_graph.quantized.normalize import QUANTIZE
from fewtune.onnx_graph.quantized.weights import Dequantized

_SIGNED = 128


class Walk:
    """Defers float tensors until an operator needs their floats.

    Attributes
    ----------
    graph : GraphBuilder
        The rewritten graph.
    floats : dict
        Deferred float tensors, by name.
    weights : dict
        Dequantized constants by name, each with the node that computes it.
    unsigned : dict of (str, bool)
        By name of a quantized tensor, the unsigned tensor that holds it, and whether it is signed.
    readers : dict of list
        The nodes that read a tensor; None stands for the caller, who reads an output.
    """

    def __init__(self, model: ModelProto) -> None:
        self.graph = GraphBuilder(model, {})
        self.floats: dict[str, Bytes | Scaled] = {}
        self.weights: dict[str, tuple[Dequantized, NodeProto]] = {}
        self.unsigned: dict[str, tuple[str, bool]] = {}
        self.readers: dict[str, list[NodeProto | None]] = {}
        self._written: set[str] = set()
        for node in model.graph.node:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)
        for value in model.graph.output:
            self.readers.setdefault(value.name, []).append(None)

    def write(self, name: str) -> None:
        """Add the nodes that compute a deferred tensor, unless the graph has them."""
        if name in self._written:
            return
        graph = self.graph
        if name in self.floats:
            floats_of(graph, self.floats[name], name)
        elif name in self.weights:
            write_dequantized(graph, self.weights[name][1])
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
        self._written.add(name)

    def only_read_by_quantizers(self, name: str) -> bool:
        """Whether every operator that reads a tensor quantizes it."""
        readers = self.readers.get(name, [])
        return all(node is not None and node.op_type == QUANTIZE for node in readers)

    def defer(self, name: str, value: Bytes | Scaled) -> bool:
        """Defer a float tensor; returns True."""
        self.floats[name] = value
        shape = self.graph.shape(name)
        if shape is not None:
            kind = TensorProto.UINT8 if isinstance(value, Bytes) else 0
            self.graph.declare(value.name, kind or self.graph.element_type(value.name), shape)
        return True

    def bytes_of(self, name: str) -> Bytes | None:
        """The bytes that a float tensor was dequantized from, if any."""
        found = self.floats.get(name)
        return found if isinstance(found, Bytes) else None

    def scaled(self, name: str) -> Scaled | None:
        """A deferred float tensor; None if it has more than one reader."""
        found = self.floats.get(name)
        if isinstance(found, Bytes):
            return found.scaled
        # Each of several readers would compute it again.
        return found if len(self.readers.get(name, [])) <= 1 else None

    def unsigned_of(self, name: str, element_type: int) -> str:
        """The unsigned tensor that holds a quantized one, 128 added to signed bytes."""
        if name in self.unsigned:
            return self.unsigned[name][0]
        if element_type == TensorProto.UINT8:
            return name
        graph = self.graph
        wide = graph.cast(name, TensorProto.INT32)
        moved = graph.op("Add", [wide, graph.constant(np.int32(_SIGNED))])
        found = graph.cast(moved, TensorProto.UINT8)
        self.unsigned[name] = (found, True)
        self._written.add(name)
        return found

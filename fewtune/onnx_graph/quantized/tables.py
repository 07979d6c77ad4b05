"""Tables of bytes stay bytes: their rows are gathered first, and become floats then.

An embedding of bytes is half of a small int8 transformer. Folded to floats, it would take four
times its bytes.
"""

from __future__ import annotations

from onnx import ModelProto, TensorProto

from fewtune.onnx_graph.graph import attributes_of
from fewtune.onnx_graph.operators.builder import GraphBuilder

_ELEMENTWISE = {"Add", "Cast", "DequantizeLinear", "Mul", "Sub"}
_BYTES = {TensorProto.INT8, TensorProto.UINT8}


def gather_bytes(model: ModelProto) -> ModelProto:
    """Let each ``Gather`` of rows read the bytes that a constant table is computed from.

    Factors and zero points of rows are gathered, too, so results are equal bit by bit. The model
    has inferred shapes; it is the result if there is no such table.
    """
    makers = {name: node for node in model.graph.node for name in node.output}
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    graph, is_changed = GraphBuilder(model, {}), False

    def types(name: str) -> set[int]:
        """Of the constants that a table is computed from; none if its rows cannot be."""
        if name in constants:
            return {constants[name].data_type}
        node = makers.get(name)
        if node is None or node.op_type not in _ELEMENTWISE:
            return set()
        if node.op_type == "DequantizeLinear" and graph.shape(node.input[1]) not in ([], [1]):
            return set()
        each = [types(given) for given in node.input]
        return set().union(*each) if all(each) else set()

    def rows(name: str, places: str, rank: int, output: str | None = None) -> str:
        """Compute some rows of a table."""
        if name not in constants:
            node = makers[name]
            inputs = [rows(given, places, rank) for given in node.input]
            return graph.op(node.op_type, inputs, output, **attributes_of(node))
        dims = constants[name].dims
        # What all rows have in common broadcasts to them as it is.
        is_common = len(dims) < rank or dims[0] == 1
        return name if is_common else graph.op("Gather", [name, places], axis=0)

    for node in model.graph.node:
        if node.op_type == "Gather" and not attributes_of(node).get("axis", 0):
            table, places = node.input
            shape = graph.shape(table)
            if shape and graph.shape(places) and table in makers and _BYTES & types(table):
                rows(table, places, len(shape), node.output[0])
                is_changed = True
                continue
        graph.add(node, {})
    return graph.model() if is_changed else model

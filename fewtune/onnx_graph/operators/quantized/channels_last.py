"""Quantised operators in channels-last layout, which onnxruntime's optimiser writes."""

from __future__ import annotations

from onnx import NodeProto

from fewtune.onnx_graph.graph import attributes_of
from fewtune.onnx_graph.operators.builder import MICROSOFT, GraphBuilder, Handler, Scope


def _channels_first(operator: str) -> Handler:
    """Handler that writes a node as ONNX's own operator between two transposes.

    Filters need none: their layout is ONNX's.
    """

    def expand(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
        given, shape = attributes_of(node), graph.shape(node.input[0])
        if shape is None:
            return graph.refuse(node, "reads a tensor whose shape is not known")
        last = given.pop("channels_last", int(operator == "MaxPool"))
        if not last:
            graph.op(operator, node.input, node.output[0], **given)
            return True
        rank = len(shape)
        data = graph.transpose(node.input[0], [0, rank - 1, *range(1, rank - 1)])
        result = graph.op(operator, [data, *node.input[1:]], **given)
        graph.transpose(result, [0, *range(2, rank), 1], node.output[0])
        return True

    return expand


HANDLERS: dict[tuple[str, str], Handler] = {
    (MICROSOFT, "NhwcMaxPool"): _channels_first("MaxPool"),
    (MICROSOFT, "QLinearConv"): _channels_first("QLinearConv"),
}

"""Non-maximum suppression with its output padded to a static size."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, NodeProto

from fewtune.onnx_graph.graph import node_text, optional
from fewtune.onnx_graph.operators.builder import GraphBuilder, Scope
from fewtune.onnx_graph.operators.expand import expand

_OPERATOR = "NonMaxSuppression"
# Batch, class and box of a selection.
_COLUMNS = 3


def pad_selections(model: ModelProto) -> ModelProto:
    """Pad the output of each suppression with constant bounds to a static size.

    Rows of -1 follow the selected boxes, up to the most that can be selected. A gather by -1 reads
    the last box. The model has static shapes as far as they are known; it is returned itself if
    there is nothing to pad.
    """
    done = set(_padded_rows(model))

    def padded(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
        _, scores, count = optional(node.input, 3)
        shape, most = graph.shape(scores), graph.value(count) if count else None
        if shape is None or most is None or node.output[0] in done:
            return False
        rows = shape[0] * shape[1] * min(int(most.reshape(-1)[0]), shape[2])
        if rows < 1:
            return False
        selecting = NodeProto()
        selecting.CopyFrom(node)
        selecting.output[0] = graph.fresh(f"{node.output[0]}_selected")
        done.add(selecting.output[0])
        graph.add(selecting, scope)
        filling = graph.constant(np.full((rows, _COLUMNS), -1, np.int64))
        whole = graph.op("Concat", [selecting.output[0], filling], axis=0)
        first = graph.constant(np.arange(rows), np.int64)
        graph.op("Gather", [whole, first], node.output[0], axis=0)
        return True

    if all(node.op_type != _OPERATOR or node.output[0] in done for node in model.graph.node):
        return model
    return expand(model, {("", _OPERATOR): padded})


def padding_notes(model: ModelProto) -> list[str]:
    """A note for the user on each suppression that `pad_selections` padded."""
    padded = _padded_rows(model)
    return [
        f"{node_text(node)}: its output is padded to {padded[node.output[0]]} rows, the most boxes "
        "that it can select; rows beyond those selected hold -1, and what is gathered by them "
        "repeats the last box"
        for node in model.graph.node
        if node.op_type == _OPERATOR and node.output[0] in padded
    ]


def _padded_rows(model: ModelProto) -> dict[str, int]:
    """Rows of -1 behind the output of each padded suppression."""
    selected = {n.output[0] for n in model.graph.node if n.op_type == _OPERATOR}
    rows = {each.name: each.dims[0] for each in model.graph.initializer if len(each.dims) == 2}
    return {
        node.input[0]: rows[node.input[1]]
        for node in model.graph.node
        if node.op_type == "Concat" and node.input[0] in selected and node.input[1] in rows
    }

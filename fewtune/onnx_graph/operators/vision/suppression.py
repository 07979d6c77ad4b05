"""Non-maximum suppression with its output padded to a static size."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, NodeProto

from fewtune.onnx_graph.graph import node_text
from fewtune.onnx_graph.operators.builder import GraphBuilder, Scope
from fewtune.onnx_graph.operators.expand import expand

_OPERATOR = "NonMaxSuppression"
# Begins the doc string of a padded node.
_PADDED = "padded to rows: "


def pad_selections(model: ModelProto) -> ModelProto:
    """Pad the output of each suppression with constant bounds to a static size.

    Rows of -1 follow the selected boxes, up to the most that can be selected. A gather by -1 reads
    the last box.

    Parameters
    ----------
    model : ModelProto
        With static shapes as far as they are known; it is left as it is.

    Returns
    -------
    model : ModelProto
        The model itself if there is nothing to pad.
    """
    if not any(_is_open(node) for node in model.graph.node):
        return model
    return expand(model, {("", _OPERATOR): _padded})


def padding_notes(model: ModelProto) -> list[str]:
    """A note for the user on each suppression that `pad_selections` padded."""
    return [
        f"{node_text(node)}: its output is padded to {node.doc_string.removeprefix(_PADDED)} rows, "
        "the most boxes that it can select; rows beyond those selected hold -1, and what is "
        "gathered by them repeats the last box"
        for node in model.graph.node
        if node.op_type == _OPERATOR and node.doc_string.startswith(_PADDED)
    ]


def _is_open(node: NodeProto) -> bool:
    return node.op_type == _OPERATOR and not node.doc_string.startswith(_PADDED)


def _padded(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    shape = graph.shape(node.input[1])
    most = graph.value(node.input[2]) if len(node.input) > 2 and node.input[2] else None
    if shape is None or most is None or not _is_open(node):
        return False
    rows = shape[0] * shape[1] * min(int(most.reshape(-1)[0]), shape[2])
    if rows < 1:
        return False
    selecting = NodeProto()
    selecting.CopyFrom(node)
    selecting.output[0] = graph.fresh(f"{node.output[0]}_selected")
    selecting.doc_string = f"{_PADDED}{rows}"
    graph.add(selecting, scope)
    filling = graph.constant(np.full((rows, 3), -1, np.int64))
    whole = graph.op("Concat", [selecting.output[0], filling], axis=0)
    first = graph.constant(np.arange(rows), np.int64)
    graph.op("Gather", [whole, first], node.output[0], axis=0)
    return True

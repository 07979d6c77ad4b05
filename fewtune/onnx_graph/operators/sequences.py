"""Sequences of static length: lists of tensors that are known while the graph is built."""

from __future__ import annotations

import numpy as np
from onnx import NodeProto

from fewtune.onnx_graph.graph import attributes_of, optional
from fewtune.onnx_graph.operators.builder import GraphBuilder, Handler, Scope

_OPEN = "has a sequence or position that is not known before the model runs"


def _construct(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    graph.sequences[node.output[0]] = list(node.input)
    return True


def _split(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    data, sizes = optional(node.input, 2)
    given, shape = attributes_of(node), graph.shape(data)
    lengths = graph.value(sizes) if sizes else np.array(1)
    if shape is None or lengths is None:
        return graph.refuse(node, "has an input of unknown shape, or sizes that are no constants")
    axis = int(given.get("axis", 0)) % len(shape)
    extent = shape[axis]
    if lengths.ndim == 0:
        ends = [min(begin + int(lengths), extent) for begin in range(0, extent, int(lengths))]
    else:
        ends = np.cumsum(lengths).tolist()
    parts = [
        graph.slice(data, axis, begin, end)
        for begin, end in zip([0, *ends[:-1]], ends, strict=True)
    ]
    if not sizes and not given.get("keepdims", 1):
        parts = [graph.reshape(part, [*shape[:axis], *shape[axis + 1 :]]) for part in parts]
    graph.sequences[node.output[0]] = parts
    return True


def _insert(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    name, added, place = optional(node.input, 3)
    parts = graph.sequences.get(name)
    index = graph.value(place) if place else np.array(len(parts or []))
    if parts is None or index is None:
        return graph.refuse(node, _OPEN)
    at = int(index.reshape(()))
    graph.sequences[node.output[0]] = [*parts[:at], added, *parts[at:]]
    return True


def _taken(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Read or erase the element of a position, by default the last."""
    name, place = optional(node.input, 2)
    parts, value = graph.sequences.get(name), graph.value(place) if place else np.array(-1)
    if parts is None or value is None:
        return graph.refuse(node, _OPEN)
    index = int(value.reshape(()))
    if not -len(parts) <= index < len(parts):
        return graph.refuse(node, f"reads place {index} of a sequence of {len(parts)}")
    if node.op_type == "SequenceAt":
        graph.op("Identity", [parts[index]], node.output[0])
    else:
        kept = list(parts)
        del kept[index]
        graph.sequences[node.output[0]] = kept
    return True


def _length(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    parts = graph.sequences.get(node.input[0])
    if parts is None:
        return graph.refuse(node, _OPEN)
    graph.op("Identity", [graph.constant(np.array(len(parts), np.int64))], node.output[0])
    return True


def _concat(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    parts, given = graph.sequences.get(node.input[0]), attributes_of(node)
    shape = graph.shape(parts[0]) if parts else None
    if shape is None:
        return graph.refuse(node, "joins an empty sequence, or tensors of unknown shape")
    axis, output = int(given["axis"]), node.output[0]
    if given.get("new_axis"):
        graph.stack(parts, axis % (len(shape) + 1), output)
    else:
        graph.concat(parts, axis % len(shape), output)
    return True


HANDLERS: dict[tuple[str, str], Handler] = {
    ("", "ConcatFromSequence"): _concat,
    ("", "SequenceAt"): _taken,
    ("", "SequenceConstruct"): _construct,
    ("", "SequenceEmpty"): _construct,
    ("", "SequenceErase"): _taken,
    ("", "SequenceInsert"): _insert,
    ("", "SequenceLength"): _length,
    ("", "SplitToSequence"): _split,
}

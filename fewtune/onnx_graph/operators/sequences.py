"""Sequences of static length: lists of tensors that are known while the graph is built."""

from __future__ import annotations

import numpy as np
from onnx import NodeProto

from fewtune.onnx_graph.graph import attributes_of, optional
from fewtune.onnx_graph.operators.builder import GraphBuilder, Handler, Scope
from fewtune.onnx_graph.operators.control_flow import stacked

_LENGTH = "has a sequence whose length is not known before the model runs"
_PLACE = "has a position that depends on the input's values"


def _construct(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    graph.sequences[node.output[0]] = list(node.input)
    return True


def _split(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    data, sizes = optional(node.input, 2)
    given, shape = attributes_of(node), graph.shape(data)
    if shape is None or (sizes and graph.value(sizes) is None):
        return graph.refuse(node, "has an input of unknown shape, or sizes that are no constants")
    axis = int(given.get("axis", 0)) % len(shape)
    extent = shape[axis]
    lengths = np.ones(extent, np.int64)
    if sizes:
        lengths = graph.value(sizes)
        if lengths.ndim == 0:
            each = int(lengths)
            lengths = np.array([min(each, extent - begin) for begin in range(0, extent, each)])
    ends = np.cumsum(lengths)
    parts = [
        graph.slice(data, axis, int(end - length), int(end))
        for end, length in zip(ends, lengths, strict=True)
    ]
    if not sizes and not given.get("keepdims", 1):
        parts = [graph.reshape(part, [*shape[:axis], *shape[axis + 1 :]]) for part in parts]
    graph.sequences[node.output[0]] = parts
    return True


def _insert(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    name, added, place = optional(node.input, 3)
    parts = graph.sequences.get(name)
    if parts is None:
        return graph.refuse(node, _LENGTH)
    if place and graph.value(place) is None:
        return graph.refuse(node, _PLACE)
    index = int(graph.value(place).reshape(())) if place else len(parts)
    graph.sequences[node.output[0]] = [*parts[:index], added, *parts[index:]]
    return True


def _erase(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    index = _index(graph, node)
    if index is None:
        return False
    parts = list(graph.sequences[node.input[0]])
    del parts[index]
    graph.sequences[node.output[0]] = parts
    return True


def _at(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    index = _index(graph, node)
    if index is None:
        return False
    graph.op("Identity", [graph.sequences[node.input[0]][index]], node.output[0])
    return True


def _index(graph: GraphBuilder, node: NodeProto) -> int | None:
    """The position that a node reads, by default the last; None if it is refused."""
    name, place = optional(node.input, 2)
    parts = graph.sequences.get(name)
    if parts is None:
        graph.refuse(node, _LENGTH)
        return None
    value = graph.value(place) if place else np.array(-1)
    if value is None:
        graph.refuse(node, _PLACE)
        return None
    index = int(value.reshape(()))
    if not -len(parts) <= index < len(parts):
        graph.refuse(node, f"reads place {index} of a sequence of {len(parts)}")
        return None
    return index


def _length(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    parts = graph.sequences.get(node.input[0])
    if parts is None:
        return graph.refuse(node, _LENGTH)
    graph.op("Identity", [graph.constant(np.array(len(parts), np.int64))], node.output[0])
    return True


def _concat(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    parts, given = graph.sequences.get(node.input[0]), attributes_of(node)
    if not parts:
        return graph.refuse(node, _LENGTH if parts is None else "joins a sequence of no tensor")
    shape = graph.shape(parts[0])
    if shape is None:
        return graph.refuse(node, "joins tensors whose shape is not known before the model runs")
    axis, output = int(given["axis"]), node.output[0]
    if given.get("new_axis"):
        stacked(graph, parts, axis % (len(shape) + 1), output)
    else:
        graph.concat(parts, axis % len(shape), output)
    return True


HANDLERS: dict[tuple[str, str], Handler] = {
    ("", "ConcatFromSequence"): _concat,
    ("", "SequenceAt"): _at,
    ("", "SequenceConstruct"): _construct,
    ("", "SequenceEmpty"): _construct,
    ("", "SequenceErase"): _erase,
    ("", "SequenceInsert"): _insert,
    ("", "SequenceLength"): _length,
    ("", "SplitToSequence"): _split,
}

"""Products of a tensor's slices with the same weights become one product.

A recurrent layer that an exporter unrolled multiplies each step's input by the same weights, and
so reads them at every step. One product of all steps reads them once. Each step's result is
gathered from it: the index is an argument of the gather's kernel, so one kernel serves all steps,
with whatever is fused into it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from onnx import ModelProto, NodeProto

from fewtune.onnx_graph.graph import attributes_of, live_nodes, set_nodes
from fewtune.onnx_graph.operators.builder import GraphBuilder

# Axes of the tensors whose slices are multiplied, and inputs of a Slice with one axis.
_AXES, _SLICE_INPUTS = 3, 4


class _Part(NamedTuple):
    """A product whose rows are the slice of a tensor at one index of an axis."""

    node: NodeProto
    data: str
    axis: int
    position: int


def join_slice_products(model: ModelProto) -> ModelProto:
    """Join products of slices, if their joint product multiplies fewer than twice as many rows.

    Parameters
    ----------
    model : ModelProto
        With inferred shapes and without nested graphs.
    """
    graph = GraphBuilder(model, {})
    constants = {tensor.name for tensor in model.graph.initializer}
    producers = {name: node for node in model.graph.node for name in node.output}
    groups: dict[tuple[Any, ...], list[_Part]] = {}
    for node in model.graph.node:
        part = _part_of(graph, node, constants, producers)
        if part is not None:
            attributes = sorted(each.SerializeToString() for each in node.attribute)
            key = (part.data, part.axis, node.op_type, *node.input[1:], *attributes)
            groups.setdefault(key, []).append(part)
    joined: dict[str, tuple[_Part, _Part]] = {}
    for group in groups.values():
        extent = graph.shape(group[0].data)[group[0].axis]
        if len(group) > 1 and 2 * len(group) > extent:
            joined |= {part.node.output[0]: (part, group[0]) for part in group}
    if not joined:
        return model
    for node in model.graph.node:
        found = joined.get(node.output[0])
        if found is None:
            graph.add(node, {})
        else:
            _gather(graph, *found)
    result = graph.model()
    set_nodes(result, live_nodes(result))
    return result


def _part_of(
    graph: GraphBuilder, node: NodeProto, constants: set[str], producers: dict[str, NodeProto]
) -> _Part | None:
    """A product of rows from a tensor of three axes; any bias is the same for each row."""
    if node.op_type not in ("Gemm", "MatMul") or attributes_of(node).get("transA"):
        return None
    ranks = [len(graph.shape(name) or ()) for name in node.input[1:]]
    if not constants.issuperset(node.input[1:]) or ranks not in ([2], [2, 1]):
        return None
    squeeze = producers.get(node.input[0])
    part = producers.get(squeeze.input[0]) if squeeze and squeeze.op_type == "Squeeze" else None
    if part is None or part.op_type != "Slice" or len(part.input) != _SLICE_INPUTS:
        return None
    shape = graph.shape(part.input[0])
    bounds = [graph.value(name) for name in part.input[1:]]
    if shape is None or len(shape) != _AXES or any(b is None or b.size != 1 for b in bounds):
        return None
    begin, end, axis = (int(each.reshape(())) for each in bounds)
    rows = [extent for each, extent in enumerate(shape) if each != axis]
    if begin < 0 or end != begin + 1 or axis not in (0, 1):
        return None
    return _Part(node, part.input[0], axis, begin) if graph.shape(node.input[0]) == rows else None


def _gather(graph: GraphBuilder, part: _Part, first: _Part) -> None:
    """Gather a product's rows from the joint one, which is written before the first of them."""
    *leading, depth = graph.shape(part.data)
    joint = f"{first.node.output[0]}_all"
    if part is first:
        rows = graph.reshape(part.data, [leading[0] * leading[1], depth])
        inputs = [rows, *part.node.input[1:]]
        graph.op(part.node.op_type, inputs, joint, **attributes_of(part.node))
    places = np.arange(leading[0] * leading[1]).reshape(leading).take(part.position, part.axis)
    inputs = [joint, graph.constant(places, np.int64)]
    graph.op("Gather", inputs, part.node.output[0], axis=0)

"""Slices instead of gathers, where the place that is gathered is known.

Attention is exported with one product for queries, keys and values, whose result is reshaped, its
axes reordered, and taken apart by three gathers with a constant index. A gather computes its
addresses from numbers in memory: TVM fuses nothing with it, and no rule here schedules it. A slice
is fused with what follows; taken ahead of the reordering, the whole of it is never written.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from fewtune.onnx_graph.graph import (
    AXES_AS_INPUT,
    drop_unused_initializers,
    element_count,
    has_nested_graphs,
    opset_of,
    set_nodes,
    static_shape,
)

_INDICES = frozenset({TensorProto.INT64, TensorProto.INT32})


class _Place(NamedTuple):
    """What a gather takes: one place of an axis, which stays as an axis of one or goes."""

    axis: int
    place: int
    stays: bool


def slices_for_gathers(model: ModelProto) -> None:
    """Turn gathers of one constant index into slices, in place, ahead of a transpose if possible.

    Parameters
    ----------
    model : ModelProto
        Its shapes are inferred; at least opset 10. One with nested graphs, which may read what a
        transpose gave, is left as it is.
    """
    if has_nested_graphs(model):
        return
    places = _places(model)
    if not places:
        return
    nodes = list(model.graph.node)
    readers = Counter(value.name for value in model.graph.output)
    readers.update(name for node in nodes for name in node.input)
    gathered = Counter(node.input[0] for node in nodes if node.output[0] in places)
    # Where something else reads what a transpose gives, it is made anyway.
    transposes = {
        node.output[0]: node
        for node in nodes
        if node.op_type == "Transpose"
        and node.attribute
        and readers[node.output[0]] == gathered[node.output[0]] > 0
    }
    result: list[NodeProto] = []
    for node in nodes:
        if node.output[0] in places:
            before = transposes.get(node.input[0])
            result += _sliced(model, node, places[node.output[0]], before)
        elif node.output[0] not in transposes:
            result.append(node)
    set_nodes(model, result)
    drop_unused_initializers(model)


def _places(model: ModelProto) -> dict[str, _Place]:
    """By its output, what each gather takes whose index is one constant within its axis."""
    graph = model.graph
    shapes = {value.name: static_shape(value) for value in [*graph.input, *graph.value_info]}
    constants = {
        tensor.name: tensor
        for tensor in graph.initializer
        if tensor.data_type in _INDICES and len(tensor.dims) <= 1 and element_count(tensor) == 1
    }
    places = {}
    for node in graph.node:
        if node.op_type != "Gather" or node.domain not in ("", "ai.onnx"):
            continue
        shape, constant = shapes.get(node.input[0]), constants.get(node.input[1])
        axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
        if not shape or constant is None or not -len(shape) <= axis < len(shape):
            continue
        extent = shape[axis]
        index = int(numpy_helper.to_array(constant).reshape(()))
        if -extent <= index < extent:
            place = _Place(axis % len(shape), index % extent, bool(constant.dims))
            places[node.output[0]] = place
    return places


def _sliced(
    model: ModelProto, gather: NodeProto, place: _Place, transpose: NodeProto | None
) -> list[NodeProto]:
    """What stands for a gather: a slice of what its transpose was given, where there is one."""
    result, data, axis = gather.output[0], gather.input[0], place.axis
    order: list[int] = []
    if transpose is not None:
        order = list(transpose.attribute[0].ints)
        data, axis = transpose.input[0], order[axis]
    bounds = {"from": place.place, "to": place.place + 1, "axis": axis}
    inputs = [data, *(_number(model, f"{result}_{name}", at) for name, at in bounds.items())]
    nodes = [_node("Slice", inputs, f"{result}_slice")]
    if not place.stays:
        nodes.append(_squeeze(model, nodes[-1].output[0], axis, f"{result}_squeezed"))
        order = [each - (each > axis) for each in order if each != axis]
    if order:
        nodes.append(_node("Transpose", [nodes[-1].output[0]], result, perm=order))
    nodes[-1].name, nodes[-1].output[0] = gather.name or result, result
    return nodes


def _squeeze(model: ModelProto, value: str, axis: int, result: str) -> NodeProto:
    """Drop an axis of one."""
    if opset_of(model) < AXES_AS_INPUT:
        return _node("Squeeze", [value], result, axes=[axis])
    return _node("Squeeze", [value, _number(model, f"{result}_axis", axis)], result)


def _node(operator: str, inputs: list[str], result: str, **attributes: Any) -> NodeProto:
    return helper.make_node(operator, inputs, [result], name=result, **attributes)


def _number(model: ModelProto, name: str, number: int) -> str:
    """Add a constant of one place."""
    array = np.array([number], np.int64)
    model.graph.initializer.append(numpy_helper.from_array(array, name))
    return name

"""Known shapes and types of a graph's values."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from onnx import ModelProto, shape_inference

from fewtune.onnx_graph.graph import detach_weights, static_shape


class Value(NamedTuple):
    """Static shape and ONNX element type."""

    shape: list[int]
    element_type: int


def known_values(model: ModelProto) -> dict[str, Value]:
    """Values of the main graph whose type and static shape are declared or inferred."""
    known = _declared(model)
    if all(name in known for node in model.graph.node for name in node.output if name):
        return known
    light_model, _weights = detach_weights(model)
    with contextlib.suppress(Exception):  # what is declared is all that is known, then
        light_model = shape_inference.infer_shapes(light_model, data_prop=True)
    return _declared(light_model) | known


def _declared(model: ModelProto) -> dict[str, Value]:
    graph = model.graph
    values = {each.name: Value(list(each.dims), each.data_type) for each in graph.initializer}
    for value in [*graph.value_info, *graph.input, *graph.output]:
        shape = static_shape(value)
        if shape is not None and value.type.tensor_type.elem_type:
            values[value.name] = Value(shape, value.type.tensor_type.elem_type)
    return values

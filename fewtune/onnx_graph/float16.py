"""Float16 models computed in float32, for processors without float16 arithmetic.

On such processors LLVM widens and rounds every value at every operation. Weights are widened when
the model is imported.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from fewtune.onnx_graph.graph import copy_model, nested_graphs

_HALF, _FLOAT = TensorProto.FLOAT16, TensorProto.FLOAT
# Attributes that name an element type.
_TYPES = ("to", "dtype", "output_dtype")


def has_float16(model: ModelProto) -> bool:
    """Whether a declared value or an initialiser of a model is float16."""
    return any(_is_half(graph) for graph in _graphs(model.graph))


def widen_float16(model: ModelProto) -> ModelProto:
    """Compute a model's float16 values in float32.

    Parameters
    ----------
    model : ModelProto
        It is left as it is.

    Returns
    -------
    model : ModelProto
        Same inputs and outputs, of the same types. Values between are rounded less, as in
        onnxruntime on a CPU. The model itself if it has no float16.
    """
    if not has_float16(model):
        return model
    made = copy_model(model)
    for graph in _graphs(made.graph):
        _widen(graph)
    graph = made.graph
    given = {value.name: value for value in model.graph.input}
    constants = {tensor.name for tensor in graph.initializer}
    before, after = [], []
    names = {}
    for value in graph.input:
        if value.name not in constants and _type_of(given[value.name]) == _HALF:
            names[value.name] = f"{value.name}/float"
            value.type.tensor_type.elem_type = _HALF
            before.append(helper.make_node("Cast", [value.name], [names[value.name]], to=_FLOAT))
    for each in _graphs(graph):
        for node in each.node:
            node.input[:] = [names.get(name, name) for name in node.input]
    outputs = {value.name for value in model.graph.output if _type_of(value) == _HALF}
    renamed = {name: f"{name}/float" for name in outputs}
    for each in _graphs(graph):
        for node in each.node:
            node.input[:] = [renamed.get(name, name) for name in node.input]
            node.output[:] = [renamed.get(name, name) for name in node.output]
    for name in renamed:
        after.append(helper.make_node("Cast", [renamed[name]], [name], to=_HALF))
    for value in graph.output:
        if value.name in outputs:
            value.type.tensor_type.elem_type = _HALF
    nodes = [*before, *graph.node, *after]
    del graph.node[:]
    graph.node.extend(nodes)
    return made


def _type_of(value: object) -> int:
    return int(value.type.tensor_type.elem_type)  # type: ignore[attr-defined]


def _is_half(graph: GraphProto) -> bool:
    values = [*graph.input, *graph.output, *graph.value_info]
    return any(_type_of(value) == _HALF for value in values) or any(
        tensor.data_type == _HALF for tensor in graph.initializer
    )


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    yield graph
    for node in graph.node:
        for inner in nested_graphs(node):
            yield from _graphs(inner)


def _widen(graph: GraphProto) -> None:
    for value in [*graph.input, *graph.output, *graph.value_info]:
        if _type_of(value) == _HALF:
            value.type.tensor_type.elem_type = _FLOAT
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for node in graph.node:
        _widen_node(node)


def _widen_node(node: NodeProto) -> None:
    for attribute in node.attribute:
        if attribute.name in _TYPES and attribute.i == _HALF:
            attribute.i = _FLOAT
        if attribute.HasField("t"):
            _widen_tensor(attribute.t)


def _widen_tensor(tensor: TensorProto) -> None:
    if tensor.data_type == _HALF:
        wide = numpy_helper.to_array(tensor).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))

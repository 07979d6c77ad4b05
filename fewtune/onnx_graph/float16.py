"""Float16 models computed in float32, for processors without float16 arithmetic.

On such processors LLVM widens and rounds every value at every operation. Weights are widened when
the model is imported.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import ModelProto, TensorProto, ValueInfoProto, helper, numpy_helper

from fewtune.onnx_graph.external_data import array_of
from fewtune.onnx_graph.graph import all_graphs, all_nodes, all_tensors, copy_model, set_nodes

_HALF, _FLOAT = TensorProto.FLOAT16, TensorProto.FLOAT
# Attributes that name an element type.
_TYPES = ("to", "dtype", "output_dtype")


def has_float16(model: ModelProto) -> bool:
    """Whether a declared value or an initializer of a model is float16."""
    kinds = {value.type.tensor_type.elem_type for value in _values(model)}
    return _HALF in kinds | {tensor.data_type for tensor in all_tensors(model)}


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
    graph = made.graph
    constants = {tensor.name for tensor in graph.initializer}
    halves = [
        value
        for value in [*graph.input, *graph.output]
        if value.type.tensor_type.elem_type == _HALF and value.name not in constants
    ]
    wide = {value.name: f"{value.name}/float" for value in halves}
    _widen(made)
    for node in all_nodes(graph):
        node.input[:] = [wide.get(name, name) for name in node.input]
        node.output[:] = [wide.get(name, name) for name in node.output]
    for value in halves:
        value.type.tensor_type.elem_type = _HALF
    given = {value.name for value in graph.input}
    before = [
        helper.make_node("Cast", [name], [wide[name]], to=_FLOAT) for name in wide if name in given
    ]
    after = [
        helper.make_node("Cast", [wide[value.name]], [value.name], to=_HALF)
        for value in graph.output
        if value.name in wide
    ]
    set_nodes(made, [*before, *graph.node, *after])
    return made


def _values(model: ModelProto) -> Iterator[ValueInfoProto]:
    """Declared values of the graph and of every graph nested in it."""
    for graph in all_graphs(model.graph):
        yield from [*graph.input, *graph.output, *graph.value_info]


def _widen(model: ModelProto) -> None:
    for value in _values(model):
        if value.type.tensor_type.elem_type == _HALF:
            value.type.tensor_type.elem_type = _FLOAT
    for attribute in (each for node in all_nodes(model.graph) for each in node.attribute):
        if attribute.name in _TYPES and attribute.i == _HALF:
            attribute.i = _FLOAT
    for tensor in all_tensors(model):
        if tensor.data_type == _HALF:
            floats = array_of(tensor).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(floats, tensor.name))

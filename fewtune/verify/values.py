"""The known shapes and types of a graph's values, and random inputs of these."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from onnx import ModelProto, ValueInfoProto, shape_inference

from fewtune.artifacts import TensorSpec
from fewtune.errors import InputError
from fewtune.onnx_graph.graph import detach_weights, graph_inputs, static_shape, type_name


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


def tensor_specs(model: ModelProto) -> tuple[list[TensorSpec], list[TensorSpec]]:
    """Inputs and outputs of a model with static shapes.

    Raises
    ------
    InputError
        If a shape is not static.
    """
    return _specs(graph_inputs(model.graph)), _specs(model.graph.output)


def _specs(values: Iterable[ValueInfoProto]) -> list[TensorSpec]:
    specs = []
    for value in values:
        shape = static_shape(value)
        if shape is None:
            raise InputError(f"the shape of {value.name!r} is not static: bind it first")
        dtype = type_name(value.type.tensor_type.elem_type)
        specs.append(TensorSpec(name=value.name, shape=shape, dtype=dtype))
    return specs


def random_inputs(specs: Sequence[TensorSpec], seed: int) -> dict[str, np.ndarray]:
    """Draw an array for every input.

    Floats are standard normal, booleans fair, uint8 (pixels) uniform. Other integers are 0 or 1,
    which are valid as token ids, as indices and in a mask.
    """
    generator = np.random.default_rng(seed)
    arrays: dict[str, np.ndarray] = {}
    for spec in specs:
        dtype = np.dtype(spec.dtype)
        if dtype.kind == "f":
            arrays[spec.name] = np.asarray(generator.standard_normal(spec.shape)).astype(dtype)
        else:
            most = 256 if dtype == np.uint8 else 2
            arrays[spec.name] = np.asarray(generator.integers(0, most, spec.shape)).astype(dtype)
    return arrays

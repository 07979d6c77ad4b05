"""Binds a model's dynamic dimensions and constant inputs, and finds the shape of every value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, helper

from fewtune.binding.branches import inline_constant_branches
from fewtune.binding.canonical import canonicalise
from fewtune.binding.ceil_mode import drop_ceil_mode_once
from fewtune.binding.constants import bind_constants, constant_arrays, empty_arrays
from fewtune.binding.fold import fold_shapes
from fewtune.binding.memory import refuse_beyond_memory
from fewtune.binding.refusals import refuse_unverifiable
from fewtune.errors import InputError
from fewtune.onnx_graph import rewrites
from fewtune.onnx_graph.graph import (
    all_nodes,
    attach_weights,
    detach_weights,
    graph_inputs,
    node_text,
    opset_of,
    remove_inputs,
    static_shape,
)
from fewtune.onnx_graph.observed_shapes import complete_shapes
from fewtune.onnx_graph.operators.control_flow import HANDLERS as CONTROL_FLOW
from fewtune.onnx_graph.operators.control_flow import TooLongError
from fewtune.onnx_graph.operators.expand import EARLY, expand
from fewtune.onnx_graph.operators.vision.suppression import pad_selections
from fewtune.onnx_graph.order import sort_nodes
from fewtune.onnx_graph.shapes import input_shapes
from fewtune.onnx_graph.simplify import (
    IMPORT_OPSET,
    MINIMUM_IR_VERSION,
    converted,
    inferred,
    slimmed,
    with_shapes,
)

# onnxruntime does not support older operator sets (its documentation, "Compatibility").
_OLDEST_REFERENCE_OPSET = 7


def bind_shapes(
    model: ModelProto,
    shapes: Mapping[str, Sequence[int]],
    dimensions: Mapping[str, int],
    constants: Mapping[str, Any] | None = None,
    samples: Mapping[str, np.ndarray] | None = None,
) -> ModelProto:
    """Bind the dynamic dimensions and the constant inputs of a model.

    Parameters
    ----------
    model : ModelProto
        With its weights in memory; it is left as it is.
    shapes, dimensions : mapping
        As for `fewtune.onnx_graph.shapes.input_shapes`; an empty input becomes a constant.
    constants : mapping, optional
        As for `fewtune.binding.constants.constant_arrays`.
    samples : mapping, optional
        Inputs of the user: onnxruntime runs them to find shapes that inference does not.

    Returns
    -------
    model : ModelProto
        Of opset 7 or later, with sorted nodes, and static inputs and outputs. Weights are not
        listed as inputs. Shapes that the file declares for other values are found again.

    Raises
    ------
    InputError
        If a dimension is left open, the graph cannot be run, or the shape of an output depends
        on the inputs' values.
    MachineError
        If a tensor takes more memory than the machine can spare.
    """
    constants = constants or {}
    bound = input_shapes(model, shapes, dimensions, constants)
    arrays = constant_arrays(model, constants, shapes, dimensions) | empty_arrays(model, bound)
    light_model, weights = detach_weights(model)
    canonicalise(light_model)
    names = {tensor.name for tensor in [*weights, *light_model.graph.initializer]}
    light_model.ir_version = max(light_model.ir_version, MINIMUM_IR_VERSION)
    bind_constants(light_model, arrays)
    _set_input_shapes(light_model, bound)
    _forget_shapes(light_model)
    sort_nodes(light_model)
    if opset_of(light_model) < _OLDEST_REFERENCE_OPSET:
        light_model = with_shapes(light_model)
        rewrites.explicit_broadcasts(light_model)
        light_model = converted(light_model, IMPORT_OPSET)
    light_model = with_shapes(light_model)
    while drop_ceil_mode_once(light_model):
        _forget_shapes(light_model)
        light_model = with_shapes(light_model)
    refuse_beyond_memory(light_model)
    result = attach_weights(light_model, weights)
    remove_inputs(result.graph, names)
    # Twice, since a condition may follow from a shape that is only completed below.
    result = inline_constant_branches(result)
    refuse_unverifiable(result)
    _refuse_endless(result)
    return inline_constant_branches(_with_all_shapes(result, samples))


def _refuse_endless(model: ModelProto) -> None:
    """Refuse a loop that never ends, before onnxruntime runs it."""
    if any(node.op_type == "Loop" for node in all_nodes(model.graph)):
        try:
            expand(model, CONTROL_FLOW)
        except TooLongError:
            raise
        except InputError:
            pass  # the import reports the operator that it cannot expand


def _with_all_shapes(model: ModelProto, samples: Mapping[str, np.ndarray] | None) -> ModelProto:
    """The model with the shapes that inference did not find."""
    model = pad_selections(model)
    if not _open_values(model):
        return model
    if any(static_shape(value) is None for value in model.graph.output):
        try:
            _take_output_shapes(model, slimmed(expand(model, EARLY)))
        except TooLongError:
            raise
        except InputError:
            pass  # onnxruntime also runs nodes that cannot be expanded yet
    varying = complete_shapes(model, samples)
    padded = pad_selections(model)
    if padded is not model:
        # The number of boxes has only become known now.
        model = inferred(padded)
        varying = complete_shapes(model, samples)
    if fold_shapes(model):
        model = inferred(model)
    for value in model.graph.output:
        if static_shape(value) is None:
            raise InputError(_open_output(value.name, varying))
    return model


def _take_output_shapes(model: ModelProto, other: ModelProto) -> None:
    """Copy output shapes that are only known in ``other``, in which constants are folded."""
    known = {value.name: value for value in other.graph.output}
    for value in model.graph.output:
        found = known.get(value.name)
        if static_shape(value) is None and found is not None and static_shape(found) is not None:
            value.type.CopyFrom(found.type)


def _open_values(model: ModelProto) -> bool:
    """Whether the shape of any node's output is not known."""
    known = {
        value.name
        for value in [*model.graph.value_info, *model.graph.output]
        if static_shape(value) is not None
    }
    return any(name and name not in known for node in model.graph.node for name in node.output)


def _open_output(output: str, varying: Mapping[str, NodeProto]) -> str:
    """Message on why the shape of an output is open, and at which node that begins."""
    if output not in varying:
        return (
            f"output {output!r} is no tensor of a fixed shape in onnxruntime either: take it "
            "out of the model's outputs"
        )
    # Back along varying values to the first node whose output shape depends on values.
    name, node = output, varying[output]
    while True:
        before = next((read for read in node.input if read in varying), None)
        if before is None:
            break
        name, node = before, varying[before]
    through = "" if name == output else f", and with it the shape of output {output!r}"
    return (
        f"the shape of {name!r}{through} depends on the input's values: {node_text(node)} "
        "chooses it while the model runs; such a model is not supported, end it before that node"
    )


def _set_input_shapes(model: ModelProto, shapes: Mapping[str, Sequence[int]]) -> None:
    for value in graph_inputs(model.graph):
        if value.name in shapes:
            element_type = value.type.tensor_type.elem_type
            value.type.CopyFrom(helper.make_tensor_type_proto(element_type, shapes[value.name]))


def _forget_shapes(model: ModelProto) -> None:
    """Drop declared shapes: they may be wrong, and inference does not correct them."""
    del model.graph.value_info[:]
    for value in model.graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")

"""From the model as given to the one TVM imports: static shapes, fewer and simpler nodes."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Mapping, Sequence

import onnx
import onnxslim
from onnx import ModelProto, helper, inliner, shape_inference, version_converter

from fewtune.errors import InputError
from fewtune.onnx_graph import rewrites
from fewtune.onnx_graph.external_data import load, save
from fewtune.onnx_graph.gathers import slices_for_gathers
from fewtune.onnx_graph.graph import (
    attach_weights,
    copy_model,
    detach_weights,
    graph_inputs,
    onnx_operators,
    opset_of,
    parameter_count,
    static_shape,
)
from fewtune.onnx_graph.operators.expand import EARLY, LATE, expand
from fewtune.onnx_graph.reshapes import reshapes_after_activations, transposes_after_sums
from fewtune.onnx_graph.shapes import input_shapes
from fewtune.onnx_graph.weight_check import can_show_fault, constant_weights, explain_blindness

# Whoever imports a model needs these beside the two functions of this module.
__all__ = [
    "bind_shapes",
    "can_show_fault",
    "constant_weights",
    "explain_blindness",
    "load",
    "onnx_operators",
    "parameter_count",
    "save",
    "simplify",
]

_logger = logging.getLogger(__name__)

# onnxruntime promises nothing below this operator set (its documentation, "Compatibility").
_OLDEST_REFERENCE_OPSET = 7

# TVM's importer knows Slice, Resize, Pad and others only in the form they have from here on.
# It is no newer version, because Softmax changes at 13 and its conversion adds nodes.
_IMPORT_OPSET = 11

_MINIMUM_IR_VERSION = 8


def bind_shapes(
    model: ModelProto,
    shapes: Mapping[str, Sequence[int]],
    dimensions: Mapping[str, int],
) -> ModelProto:
    """Bind the dynamic dimensions of a model.

    Parameters
    ----------
    model : ModelProto
        With its weights in memory; it is left as it is.
    shapes, dimensions : mapping
        As `fewtune.onnx_graph.shapes.input_shapes`.

    Returns
    -------
    model : ModelProto
        Inputs and outputs static, weights no longer listed as inputs, at least opset 7.

    Raises
    ------
    InputError
        If a dimension is left open, or the shape of an output depends on the input's values.
    """
    bound = input_shapes(model, shapes, dimensions)
    light_model, weights = detach_weights(model)
    names = {tensor.name for tensor in [*weights, *light_model.graph.initializer]}
    light_model.ir_version = max(light_model.ir_version, _MINIMUM_IR_VERSION)
    _set_input_shapes(light_model, bound)
    if opset_of(light_model) < _OLDEST_REFERENCE_OPSET:
        light_model = _with_shapes(light_model)
        rewrites.explicit_broadcasts(light_model)
        light_model = _converted(light_model, _IMPORT_OPSET)
    _forget_dynamic_shapes(light_model)
    light_model = _with_shapes(light_model)
    result = attach_weights(light_model, weights)
    kept = [value for value in result.graph.input if value.name not in names]
    del result.graph.input[:]
    result.graph.input.extend(kept)
    if any(static_shape(value) is None for value in result.graph.output):
        _take_output_shapes(result, _slimmed(expand(result, EARLY)))
    for value in result.graph.output:
        if static_shape(value) is None:
            raise InputError(
                f"the shape of output {value.name!r} is not known before the model runs "
                "(it depends on the input's values): such a model is not supported"
            )
    return result


def simplify(model: ModelProto) -> ModelProto:
    """Fold and rewrite a model with static shapes into what TVM imports best.

    Parameters
    ----------
    model : ModelProto
        From `bind_shapes`; it is left as it is.

    Returns
    -------
    model : ModelProto
        Same inputs, outputs and results; batch normalisations, dropouts, identities and constant
        subgraphs folded (onnxslim), then the rewrites of `fewtune.onnx_graph.rewrites`,
        `fewtune.onnx_graph.reshapes` and `fewtune.onnx_graph.gathers`. Where a step fails on a
        model its input is kept: simplifying is no reason to lose a model.
    """
    light_model, weights = detach_weights(model)
    if light_model.functions:
        with contextlib.suppress(Exception):  # what stays is reported by the importer, by name
            light_model = inliner.inline_local_functions(light_model)
    if opset_of(light_model) < _IMPORT_OPSET:
        light_model = _converted(light_model, _IMPORT_OPSET)
    result = attach_weights(_with_shapes(light_model), weights)
    result = _slimmed(expand(result, EARLY))
    light_model, weights = detach_weights(result)
    rewrites.constant_nodes_to_initializers(light_model)
    result = attach_weights(_with_shapes(light_model), weights)
    rewrites.normalisations_as_scales(result)
    rewrites.chain_variadic(result)
    rewrites.positive_axes(result)
    rewrites.numbers_without_axes(result)
    transposes_after_sums(result)
    reshapes_after_activations(result)
    slices_for_gathers(result)
    rewrites.constants_of_full_rank(result)
    # Last: of thousands of steps the rewrites before would take minutes, and gain nothing.
    result = expand(result, LATE)
    light_model, weights = detach_weights(result)
    return attach_weights(_with_shapes(light_model), weights)


def _set_input_shapes(model: ModelProto, shapes: Mapping[str, Sequence[int]]) -> None:
    for value in graph_inputs(model.graph):
        if value.name in shapes:
            element_type = value.type.tensor_type.elem_type
            bound = helper.make_tensor_type_proto(element_type, shapes[value.name])
            value.type.CopyFrom(bound)


def _forget_dynamic_shapes(model: ModelProto) -> None:
    """Drop shapes that still name a dynamic dimension, so that inference writes them anew."""
    static = [value for value in model.graph.value_info if static_shape(value) is not None]
    del model.graph.value_info[:]
    model.graph.value_info.extend(static)
    for value in model.graph.output:
        if value.type.HasField("tensor_type") and static_shape(value) is None:
            value.type.tensor_type.ClearField("shape")


def _with_shapes(model: ModelProto) -> ModelProto:
    try:
        return shape_inference.infer_shapes(model, data_prop=True)
    except Exception as error:  # noqa: BLE001 (a C++ pass; what is unknown stays unknown)
        _logger.debug("shape inference failed: %s", error)
        return model


def _converted(model: ModelProto, opset: int) -> ModelProto:
    """The model at a newer opset, or itself where onnx cannot convert it."""
    try:
        converted = version_converter.convert_version(model, opset)
        onnx.checker.check_model(converted)
    except Exception as error:  # noqa: BLE001 (a C++ pass)
        _logger.info("kept at opset %d: %s", opset_of(model), str(error).splitlines()[:1])
        return model
    converted.ir_version = max(converted.ir_version, model.ir_version)
    return converted


def _slimmed(model: ModelProto) -> ModelProto:
    """The model after onnxslim, or a copy of it where onnxslim fails or changes its interface."""
    copy = copy_model(model)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            slimmed = onnxslim.slim(copy)
    except Exception as error:  # noqa: BLE001 (onnxslim raises many kinds)
        _logger.info("onnxslim failed, the model stays as it is: %s", error)
        return copy_model(model)
    if slimmed is None or _interface(slimmed) != _interface(model):
        _logger.info("onnxslim changed the inputs or outputs, the model stays as it is")
        return copy_model(model)
    slimmed.ir_version = max(slimmed.ir_version, _MINIMUM_IR_VERSION)
    return slimmed


def _interface(model: ModelProto) -> tuple[list[str], list[str]]:
    inputs = [value.name for value in graph_inputs(model.graph)]
    return inputs, [value.name for value in model.graph.output]


def _take_output_shapes(model: ModelProto, other: ModelProto) -> None:
    """Copy output shapes that only became known in ``other``, where constants are folded."""
    known = {value.name: value for value in other.graph.output}
    for value in model.graph.output:
        found = known.get(value.name)
        if static_shape(value) is None and found is not None and static_shape(found) is not None:
            value.type.CopyFrom(found.type)

"""Shapes that ONNX's inference does not find, taken from runs of onnxruntime.

Inference has no rule for operators of other domains, nor for some functions of the standard, such
as GroupNormalization. It does not follow sizes through every chain of operators.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
from onnx import ModelProto, NodeProto, ValueInfoProto, helper

from fewtune.errors import InputError
from fewtune.onnx_graph.external_data import light
from fewtune.onnx_graph.graph import (
    RANDOM,
    attach_weights,
    detach_weights,
    graph_inputs,
    static_shape,
    values_of,
)

# The shapes of these operators' outputs depend on the values of their inputs.
_SIZED_BY_VALUES = frozenset({"NonZero", "NonMaxSuppression", "Unique", "Compress"})
_WANTED_RUNS = 2
# Text that onnxruntime puts around its messages.
_NOISE = (
    re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : "),
    re.compile(r"Load model from \S+ failed:"),
    re.compile(r"Exception during initialization: "),
    re.compile(r"/onnxruntime_src/\S+:\d+ [^)]*\) "),
    re.compile(r"Non-zero status code returned while running "),
    re.compile(r"Status Message: "),
)
_LONGEST = 300


def complete_shapes(
    model: ModelProto, samples: Mapping[str, np.ndarray] | None = None
) -> dict[str, NodeProto]:
    """Write the shapes that inference left open into a model, in place, from onnxruntime's runs.

    The model runs on two draws of inputs. A value that has the same shape in both is taken to be
    static, unless it depends on an operator whose output shapes depend on values.

    Parameters
    ----------
    model : ModelProto
        With static inputs, sorted nodes, weights in memory, and inferred shapes.
    samples : mapping, optional
        Inputs of the user, on which the model runs as well.

    Returns
    -------
    varying : dict
        Each value whose shape depends on the inputs' values, with its node, in graph order.

    Raises
    ------
    InputError
        If onnxruntime cannot load or run the model.
    """
    known = {value.name for value in values_of(model) if static_shape(value) is not None}
    unknown = [
        name for node in model.graph.node for name in node.output if name and name not in known
    ]
    if not unknown:
        return {}
    runs = _observed(model, unknown, samples)
    varying = _follow_values(model, known)
    for node in model.graph.node:
        for name in node.output:
            shapes = {getattr(run[name], "shape", None) for run in runs if name in run}
            if name in unknown and (len(shapes) > 1 or None in shapes):
                varying[name] = node
    _write(model, {name: runs[0][name] for name in unknown if name not in varying})
    return {name: node for node in model.graph.node for name in node.output if name in varying}


def run_onnxruntime_once(
    model: ModelProto, feeds: Sequence[Mapping[str, np.ndarray]]
) -> list[list[Any] | Exception]:
    """Run a model of any size on some inputs, without onnxruntime's optimizations.

    Returns
    -------
    results : list
        By run, the outputs, or the exception that it raised.

    Raises
    ------
    InputError
        If onnxruntime cannot load the model.
    """
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4  # the exception of a failed run says enough
    given, arrays = light(model)
    held = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in arrays.values()]
    options.add_external_initializers(list(arrays), held)
    try:
        session = onnxruntime.InferenceSession(
            given.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # noqa: BLE001 (onnxruntime raises a class a status)
        raise InputError(cannot_load(error)) from None
    results: list[list[Any] | Exception] = []
    for inputs in feeds:
        try:
            results.append(session.run(None, dict(inputs)))
        except Exception as error:  # noqa: BLE001 (as above)
            results.append(error)
    return results


def cannot_load(error: Exception) -> str:
    """Why a model is refused if onnxruntime, which is the reference, does not load it."""
    return (
        f"onnxruntime cannot load the model: {short_message(error)}; then no output can be "
        "checked: export the model with operators and types that onnxruntime has on CPUs"
    )


def short_message(error: Exception) -> str:
    """First line of an exception's text, without error codes and source positions."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    for noise in _NOISE:
        text = noise.sub("", text)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def draws(model: ModelProto) -> Iterator[dict[str, np.ndarray]]:
    """Draw inputs in three ways; in one of them all are positive, in another integers are zero."""
    for way in range(3):
        generator = np.random.default_rng(way)
        arrays = {}
        for value in graph_inputs(model.graph):
            shape = static_shape(value)
            dtype = np.dtype(helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))
            if shape is None:
                raise InputError(f"the shape of input {value.name!r} is not static: bind it first")
            if dtype.kind in "biu":
                array = np.full(shape, (1, 0, 2)[way])
            elif way == 0:
                array = generator.standard_normal(shape)
            else:
                # Some zeros: they vary the output shape of NonZero.
                array = generator.uniform(0, 1, shape)
                array = np.where(array < 0.3, 0.0, array) if way == 1 else array + 0.1
            arrays[value.name] = np.asarray(array).astype(dtype)
        yield arrays


def _observed(
    model: ModelProto, names: Sequence[str], samples: Mapping[str, np.ndarray] | None
) -> list[dict[str, Any]]:
    """Values by name, of the first runs that succeed."""
    light_model, weights = detach_weights(model)
    outputs = {value.name for value in light_model.graph.output}
    light_model.graph.output.extend(
        ValueInfoProto(name=name) for name in names if name not in outputs
    )
    shown = [value.name for value in light_model.graph.output]
    for value in light_model.graph.output:
        if value.name in names and value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    feeds = [dict(samples)] if samples else []
    results = run_onnxruntime_once(attach_weights(light_model, weights), [*feeds, *draws(model)])
    good = [result for result in results if not isinstance(result, Exception)][:_WANTED_RUNS]
    if not good:
        fault = next(result for result in results if isinstance(result, Exception))
        raise InputError(f"onnxruntime cannot run the model: {short_message(fault)}")
    return [dict(zip(shown, result, strict=True)) for result in good]


def _follow_values(model: ModelProto, known: set[str]) -> dict[str, NodeProto]:
    """Values of open shape that depend on an operator of `_SIZED_BY_VALUES`."""
    constants = {tensor.name for tensor in model.graph.initializer}
    varying: dict[str, NodeProto] = {}
    for node in model.graph.node:
        given = [name for name in node.input if name]
        reads_shape = node.op_type in ("Shape", "Size") and known.issuperset(given)
        # Only the chosen indices of a Compress decide its size.
        deciding = given[1:] if node.op_type == "Compress" else given
        if node.op_type not in RANDOM and (reads_shape or constants.issuperset(given)):
            constants.update(node.output)
        elif any(name in varying for name in given) or (
            node.op_type in _SIZED_BY_VALUES and not constants.issuperset(deciding)
        ):
            varying.update((name, node) for name in node.output if name and name not in known)
    return varying


def _write(model: ModelProto, found: Mapping[str, np.ndarray]) -> None:
    """Declare the shapes and types of these values."""
    kept = [value for value in model.graph.value_info if value.name not in found]
    outputs = {value.name: value for value in model.graph.output}
    del model.graph.value_info[:]
    model.graph.value_info.extend(kept)
    for name, array in found.items():
        try:
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        except (KeyError, ValueError):  # texts
            continue
        value = helper.make_tensor_value_info(name, kind, array.shape)
        if name in outputs:
            outputs[name].type.CopyFrom(value.type)
        else:
            model.graph.value_info.append(value)

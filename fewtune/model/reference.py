"""The reference that every compiled model is held against: onnxruntime on random inputs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import ModelProto, shape_inference

from fewtune.artifacts import TensorSpec
from fewtune.onnx_graph.graph import attach_weights, detach_weights, static_shape
from fewtune.verify.session import OnnxruntimeSession, run_onnxruntime, tensor_specs

__all__ = [
    "OnnxruntimeSession",
    "random_inputs",
    "relative_error",
    "run_onnxruntime",
    "tensor_specs",
    "with_logits",
]

# What squeezes a model's last values into a range where relative errors say little.
_SQUASHING = frozenset({"Softmax", "LogSoftmax", "Sigmoid"})
_SHAPE_ONLY = frozenset({"Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose"})


def random_inputs(specs: Sequence[TensorSpec], seed: int) -> dict[str, np.ndarray]:
    """Draw an array for every input.

    Floats are standard normal, booleans fair, uint8 (pixels) uniform. Other integers are 0 or 1:
    whether they are token ids, indices or a mask cannot be known, and those are valid for each.
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


def relative_error(actual: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """Largest absolute difference over the largest absolute expected value, worst output.

    Parameters
    ----------
    actual, expected : sequence of arrays
        Outputs in the same order.

    Returns
    -------
    error : float
        Zero where they agree exactly. Infinite where the number of outputs, a shape, or the
        finiteness of a value differs from what a comparison needs.
    """
    if len(actual) != len(expected):
        return float("inf")
    return max((_error(a, e) for a, e in zip(actual, expected, strict=True)), default=0.0)


def _error(actual: np.ndarray, expected: np.ndarray) -> float:
    actual, expected = np.asarray(actual), np.asarray(expected)
    if actual.shape != expected.shape:
        return float("inf")
    if actual.size == 0:
        return 0.0
    wide_actual, wide_expected = actual.astype(np.float64), expected.astype(np.float64)
    if not (np.isfinite(wide_actual).all() and np.isfinite(wide_expected).all()):
        return float("inf")
    difference = float(np.abs(wide_actual - wide_expected).max())
    scale = float(np.abs(wide_expected).max())
    if difference == 0.0:
        return 0.0
    return difference / scale if scale > 0.0 else float("inf")


def with_logits(model: ModelProto) -> ModelProto:
    """Add the tensors before a final Softmax, LogSoftmax or Sigmoid as further outputs.

    Behind one, values near zero hide a fault or exaggerate a rounding difference; before it, the
    relative error means something.

    Parameters
    ----------
    model : ModelProto
        With static shapes; it is left as it is.

    Returns
    -------
    model : ModelProto
        The outputs of ``model`` first, then one for each final squashing operator.
    """
    producers = {output: node for node in model.graph.node for output in node.output}
    names = [value.name for value in model.graph.output]
    for output in list(names):
        node = producers.get(output)
        while node is not None and node.op_type in _SHAPE_ONLY:
            node = producers.get(node.input[0])
        if node is not None and node.op_type in _SQUASHING and node.input[0] in producers:
            names.append(node.input[0])
    light_model, weights = detach_weights(model)
    known = {value.name: value for value in light_model.graph.value_info}
    if any(name not in known for name in names):
        inferred = shape_inference.infer_shapes(light_model, data_prop=True)
        known = {value.name: value for value in inferred.graph.value_info}
    outputs = {value.name for value in model.graph.output}
    for name in names:
        if name not in outputs and name in known and static_shape(known[name]) is not None:
            light_model.graph.output.append(known[name])
            outputs.add(name)
    return attach_weights(light_model, weights)

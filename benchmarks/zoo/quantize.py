"""Quantizes models to eight bits by onnxruntime's quantizer."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from onnx import ModelProto

from fewtune.artifacts import TensorSpec
from fewtune.onnx_graph.external_data import load, save
from fewtune.onnx_graph.graph import graph_inputs, opset_of, static_shape, type_name
from fewtune.onnx_graph.simplify import converted, slimmed, with_shapes
from fewtune.verify.draws import drawn_inputs

# Suffix of a quantized model's name.
SUFFIX = "-int8"
# Scales per channel need this operator set.
_OPSET = 13
_CALIBRATION_DRAWS = 4
# Suffixes of names that the quantizer makes; it mistakes an existing constant for its own.
_ENDS = ("_scale", "_zero_point", "_quantized")


def quantize(model: ModelProto, seed: int = 0) -> ModelProto:
    """Quantize a model: statically if it has convolutions, otherwise dynamically.

    Parameters
    ----------
    model : ModelProto
        In float32, with static shapes; it is left as it is.
    seed : int
        Seed of the calibration inputs of a convolutional network.

    Returns
    -------
    model : ModelProto
        A convolutional network has ``QuantizeLinear`` and ``DequantizeLinear`` around its
        operators, unsigned activations, and signed weights with one scale for each filter. Any
        other has ``DynamicQuantizeLinear`` and ``MatMulInteger`` for its products with constants.
    """
    prepared = slimmed(with_shapes(model)).whole()
    if opset_of(prepared) < _OPSET:
        prepared = converted(prepared, _OPSET)
    prepared = _with_free_names(prepared)
    if not any(node.op_type == "Conv" for node in prepared.graph.node):
        return _dynamic(prepared)
    return _static(prepared, seed)


def _with_free_names(model: ModelProto) -> ModelProto:
    """A copy in which no constant has a name that the quantizer would make."""
    made = ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    values = {value.name for value in graph_inputs(graph)}
    values.update(name for node in graph.node for name in node.output)
    values.update(tensor.name for tensor in graph.initializer)
    renamed = {}
    for tensor in graph.initializer:
        ends = [end for end in _ENDS if tensor.name.endswith(end)]
        if any(tensor.name.removesuffix(end) in values for end in ends):
            renamed[tensor.name] = tensor.name = f"{tensor.name}_given"
    for node in graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = renamed.get(name, name)
    return made


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the quantizer's advice to prepare the model, which has been done."""
    logger = logging.getLogger()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _static(model: ModelProto, seed: int) -> ModelProto:
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    class _Reader(CalibrationDataReader):
        def __init__(self, feeds: list[dict[str, np.ndarray]]) -> None:
            self._left = iter(feeds)

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self._left, None)

    feeds = calibration_inputs(model, seed, _CALIBRATION_DRAWS)
    with tempfile.TemporaryDirectory() as directory, _quiet():
        given, made = Path(directory) / "float.onnx", Path(directory) / "quantized.onnx"
        save(model, given)
        quantize_static(
            str(given),
            str(made),
            _Reader(feeds),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
        return load(made)


def _dynamic(model: ModelProto) -> ModelProto:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory() as directory, _quiet():
        given, made = Path(directory) / "float.onnx", Path(directory) / "quantized.onnx"
        save(model, given)
        quantize_dynamic(str(given), str(made), weight_type=QuantType.QInt8)
        return load(made)


def calibration_inputs(model: ModelProto, seed: int, draws: int) -> list[dict[str, np.ndarray]]:
    """Inputs for the calibration of a model's ranges.

    Parameters
    ----------
    model : ModelProto
        With static shapes.
    seed : int
    draws : int
        Number of draws: half normal, half uniform in 0 to 1.

    Returns
    -------
    feeds : list of dict
        Arrays by name of the input.
    """
    specs = [
        TensorSpec(
            name=value.name,
            shape=static_shape(value) or [],
            dtype=type_name(value.type.tensor_type.elem_type),
        )
        for value in graph_inputs(model.graph)
    ]
    found: list[dict[str, np.ndarray]] = []
    for number in range(-(-draws // 2)):
        found += [draw.feeds for draw in drawn_inputs(model, specs, seed + number)[:2]]
    return found[:draws]

"""Inputs of ONNX's node tests that decide shapes: constants in real models, and bound here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

# Inputs that decide shapes, or which of a node's graphs runs, by their names in ONNX's definitions.
STEERING = frozenset(
    [
        "axes",
        "axis",
        "shape",
        "pads",
        "repeats",
        "K",
        "starts",
        "ends",
        "steps",
        "split",
        "sizes",
        "scales",
        "roi",
        "output_shape",
        "depth",
        "start",
        "limit",
        "delta",
        "M",
        "trip_count",
        "cond",
        "condition",
        "k",
        "max_output_boxes_per_class",
        "iou_threshold",
        "score_threshold",
        "dft_length",
        "size",
        "frame_step",
        "frame_length",
        "block_shape",
        "image_shape",
        "ratio",
        "training_mode",
        "num_mel_bins",
        "sample_rate",
        "lower_edge_hertz",
        "upper_edge_hertz",
    ]
)


STEERING_BY_OPERATOR = frozenset(
    {("ConstantOfShape", "input"), ("Pad", "constant_value"), ("Compress", "condition")}
)


def bind_steering(model: onnx.ModelProto, inputs: list[Any]) -> tuple[onnx.ModelProto, list[Any]]:
    """Turn inputs that steer shapes into initialisers.

    Returns
    -------
    model : ModelProto
    inputs : list of arrays
        Those that are still inputs.
    """
    bound = onnx.ModelProto()
    bound.CopyFrom(model)
    steering = {name for node in model.graph.node for name in _steering_inputs(node, model)}
    kept_values, kept_arrays = [], []
    for value, array in zip(model.graph.input, inputs, strict=True):
        if value.name in steering and isinstance(array, np.ndarray):
            bound.graph.initializer.append(numpy_helper.from_array(array, value.name))
        else:
            kept_values.append(value)
            kept_arrays.append(array)
    if not kept_values:
        # A model needs an input, though nothing reads it.
        kept_values.append(helper.make_tensor_value_info("unused", onnx.TensorProto.FLOAT, [1]))
        kept_arrays.append(np.zeros(1, np.float32))
    del bound.graph.input[:]
    bound.graph.input.extend(kept_values)
    return bound, kept_arrays


def _steering_inputs(node: onnx.NodeProto, model: onnx.ModelProto) -> Iterator[str]:
    version = max(o.version for o in model.opset_import if o.domain == node.domain)
    try:
        schema = onnx.defs.get_schema(node.op_type, version, node.domain)
    except onnx.defs.SchemaError:
        return
    for position, name in enumerate(node.input):
        formal = schema.inputs[min(position, len(schema.inputs) - 1)]
        if formal.name in STEERING or (node.op_type, formal.name) in STEERING_BY_OPERATOR:
            yield name

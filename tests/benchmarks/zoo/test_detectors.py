"""Boxes and scores that the zoo's detectors decode."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from benchmarks.zoo.registry import count, zoo_model
from fewtune.artifacts import TensorSpec
from fewtune.verify.session import random_inputs, run_onnxruntime

pytestmark = pytest.mark.slow


def run_with(name, *values):
    """Outputs of a detector by name, and values inside it that are 1 x anchors x something."""
    model = zoo_model(name, 0)
    outputs = [value.name for value in model.graph.output]
    for value in values:
        model.graph.output.append(helper.make_tensor_value_info(value, TensorProto.FLOAT, None))
    specs = [TensorSpec(name="image", shape=count(name).inputs["image"], dtype="float32")]
    found = run_onnxruntime(model, random_inputs(specs, 0), 2)
    return {key: array[0] for key, array in zip([*outputs, *values], found, strict=True)}


def sigmoid(value):
    return 1 / (1 + np.exp(-value))


# An anchor in the middle of the coarsest scale, one on the next, the last on the finest: its index,
# the stride, column and row of its cell, and its size.
YOLO_ANCHORS = [
    (3 * (13 * 5 + 2) + 1, 32, 2, 5, (156, 198)),
    (3 * (169 + 26 * 1 + 7) + 2, 16, 7, 1, (59, 119)),
    (10646, 8, 51, 51, (33, 23)),
]


def test_yolo_boxes_and_scores_are_those_of_the_paper():
    found = run_with("yolov3_mobilenet", "predictions")
    assert found["scores"].std() > 0.01
    for index, stride, column, row, size in YOLO_ANCHORS:
        raw = found["predictions"][index]
        center = (sigmoid(raw[:2]) + [column, row]) * stride
        half = np.exp(raw[2:4]) * size / 2
        expected = np.concatenate([center - half, center + half])
        assert found["boxes"][index] == pytest.approx(expected, rel=1e-3, abs=1e-2)
        expected = sigmoid(raw[4]) * sigmoid(raw[5:])
        assert found["scores"][index] == pytest.approx(expected, rel=1e-3)


# The first anchor of the first cell, the larger square of a cell of the second scale, a wide one
# and a tall one there, the only large square of the last scale: index, center and size.
SSD_ANCHORS = [
    (0, (8, 8), (51.2, 51.2)),
    (4096 + 6 * (16 * 3 + 2) + 1, (80, 112), (np.sqrt(102.4 * 189.4),) * 2),
    (4096 + 6 * (16 * 3 + 2) + 2, (80, 112), (102.4 * np.sqrt(2), 102.4 / np.sqrt(2))),
    (4096 + 6 * (16 * 3 + 2) + 5, (80, 112), (102.4 / np.sqrt(3), 102.4 * np.sqrt(3))),
    (6129, (256, 256), (np.sqrt(450.6 * 492),) * 2),
]


def test_ssd_boxes_are_those_of_the_paper():
    found = run_with("ssd512_resnet50", "offsets")
    assert found["scores"].sum(axis=1) == pytest.approx(1, rel=1e-3)
    for index, anchor_center, anchor_size in SSD_ANCHORS:
        raw = found["offsets"][index]
        center = anchor_center + 0.1 * raw[:2] * anchor_size
        half = np.exp(0.2 * raw[2:]) * anchor_size / 2
        expected = np.concatenate([center - half, center + half])
        assert found["boxes"][index] == pytest.approx(expected, rel=1e-3, abs=1e-2)

"""Poolings with implied padding or indices, and MaxUnpool, compared with onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from tests.expanded_models import assert_same
from tests.tiny_models import make_model


def model_of(nodes, shape, outputs, constants=()):
    weights = {name: np.asarray(array, np.int64) for name, array in constants}
    return make_model(nodes, {"x": shape}, dict.fromkeys(outputs), weights, opset=17)


@pytest.mark.parametrize(
    ("shape", "attributes"),
    [
        ((1, 3, 8, 8), {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ((2, 2, 7, 9), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ((1, 2, 9, 8), {"kernel_shape": [3, 2], "strides": [2, 3], "auto_pad": "SAME_UPPER"}),
        ((1, 2, 9, 9), {"kernel_shape": [3, 3], "dilations": [2, 2], "storage_order": 1}),
        ((1, 2, 13), {"kernel_shape": [3], "strides": [2], "ceil_mode": 1}),
    ],
)
def test_indices_of_maxima_equal_those_of_onnxruntime(shape, attributes):
    data = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    nodes = [
        helper.make_node("MaxPool", ["x"], ["y", "places"], "pool", **attributes),
        helper.make_node("Cast", ["places"], ["shown"], to=1),
    ]
    assert_same(model_of(nodes, shape, ["y", "shown"]), {"x": data})


@pytest.mark.parametrize("given", [(), ("whole",)])
def test_unpooling_puts_maxima_back(given):
    shape = (1, 3, 8, 8)
    data = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    window = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [
        helper.make_node("MaxPool", ["x"], ["pooled", "places"], "pool", **window),
        helper.make_node("MaxUnpool", ["pooled", "places", *given], ["y"], "unpool", **window),
    ]
    assert_same(model_of(nodes, shape, ["y"], [("whole", shape)]), {"x": data})


@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize("mode", ["SAME_LOWER", "SAME_UPPER", "VALID"])
def test_implied_padding_is_written_out(operator, mode):
    shape = (1, 3, 9, 8)
    data = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    window = {"kernel_shape": [3, 2], "strides": [2, 3], "auto_pad": mode}
    nodes = [helper.make_node(operator, ["x"], ["y"], "pool", **window)]
    result = assert_same(model_of(nodes, shape, ["y"]), {"x": data})
    (pool,) = result.graph.node
    assert "auto_pad" not in {attribute.name for attribute in pool.attribute}


def test_a_dilated_window_is_padded_as_onnxruntime_does():
    shape = (1, 3, 10)
    data = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    window = {"kernel_shape": [3], "strides": [2], "dilations": [2], "auto_pad": "SAME_LOWER"}
    nodes = [helper.make_node("MaxPool", ["x"], ["y"], "pool", **window)]
    assert_same(model_of(nodes, shape, ["y"]), {"x": data})


@pytest.mark.parametrize(
    "attributes",
    [
        {"kernel_shape": [3, 3], "strides": [2, 2]},
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "p": 3},
        {"kernel_shape": [3, 3], "strides": [3, 3], "pads": [0, 1, 1, 0]},
        {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "VALID"},
    ],
)
def test_a_norm_of_windows_beyond_the_end_counts_existing_elements(attributes):
    data = np.random.default_rng(0).standard_normal((1, 3, 10, 11)).astype(np.float32)
    node = helper.make_node("LpPool", ["x"], ["y"], "pool", ceil_mode=1, **attributes)
    model = model_of([node], data.shape, ["y"])
    model.opset_import[0].version = 19
    result = assert_same(model, {"x": data})
    (pool,) = result.graph.node
    assert not any(each.name == "ceil_mode" and each.i for each in pool.attribute)

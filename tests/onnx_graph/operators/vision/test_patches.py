"""Patches put together, and taken where offsets point, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.expanded_models import assert_same


def normal(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def model_of(node, inputs, constants, opset=19):
    graph = helper.make_graph(
        [node],
        "patches",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape) for n, a in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


@pytest.mark.parametrize(
    ("columns", "image", "block", "attributes"),
    [
        (16, (5, 5), (2, 2), {}),
        (16, (8, 8), (3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
        (4, (6, 6), (2, 2), {"dilations": [2, 2], "strides": [2, 2]}),
    ],
)
def test_columns_are_summed_into_an_image(columns, image, block, attributes):
    data = normal(2, 3 * block[0] * block[1], columns)
    node = helper.make_node("Col2Im", ["x", "image", "block"], ["y"], "col2im", **attributes)
    constants = {"image": np.array(image), "block": np.array(block)}
    assert_same(model_of(node, {"x": data}, constants), {"x": data})


@pytest.mark.parametrize(("groups", "parts", "stride"), [(1, 1, 1), (2, 2, 2)])
def test_a_deformable_convolution_samples_where_offsets_point(groups, parts, stride):
    data, taps = normal(1, 4, 8, 8), 9
    extent = 8 // stride
    inputs = {
        "x": data,
        "offset": normal(1, parts * taps * 2, extent, extent),
        "mask": normal(1, parts * taps, extent, extent),
    }
    weights = {"w": normal(6, 4 // groups, 3, 3), "b": normal(6)}
    node = helper.make_node(
        "DeformConv",
        ["x", "w", "offset", "b", "mask"],
        ["y"],
        "deform",
        group=groups,
        offset_group=parts,
        pads=[1] * 4,
        strides=[stride, stride],
    )
    assert_same(model_of(node, inputs, weights), inputs)

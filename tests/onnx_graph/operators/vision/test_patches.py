"""Patches assembled or sampled, compared with onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from fewtune.onnx_graph.operators.expand import EARLY, expand
from fewtune.verify.session import run_onnxruntime
from tests.expanded_models import assert_same, normal
from tests.tiny_models import make_model


def model_of(node, inputs, constants, opset=19):
    shapes = {name: list(array.shape) for name, array in inputs.items()}
    return make_model([node], shapes, {"y": None}, constants, opset)


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


@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize("size", [(1, 3, 4, 5), (2, 3, 4, 5), (1, 2, 3, 4, 5)])
def test_an_affine_grid_is_a_product(size, aligned):
    axes = len(size) - 2
    data = normal(size[0], axes, axes + 1)
    node = helper.make_node("AffineGrid", ["x", "size"], ["y"], "grid", align_corners=aligned)
    model = model_of(node, {"x": data}, {"size": np.array(size)}, opset=20)
    assert_same(model, {"x": data})


def test_regions_are_scaled_before_half_a_pixel_is_subtracted():
    data, regions = normal(1, 2, 12, 12), np.array([[1, 2, 9, 17], [0, 0, 20, 11]], np.float32)
    node = helper.make_node(
        "RoiAlign", ["x", "r", "i"], ["y"], "align", output_height=3, output_width=3,
        spatial_scale=0.5, sampling_ratio=2,
    )  # fmt: skip
    constants = {"r": regions, "i": np.array([0, 0])}
    model = model_of(node, {"x": data}, constants)
    result = expand(model, EARLY)
    scales = [a.f for n in result.graph.node for a in n.attribute if a.name == "spatial_scale"]
    assert scales == [1.0]
    for given, wanted in zip(
        run_onnxruntime(result, {"x": data}, 1), run_onnxruntime(model, {"x": data}, 1), strict=True
    ):
        np.testing.assert_allclose(given, wanted, rtol=1e-5, atol=1e-6)

"""Patches assembled, and padding written out, compared with onnxruntime."""

import numpy as np
import pytest
from onnx import helper

from fewtune.errors import InputError
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
        (9, (8, 7), (2, 3), {"strides": [3, 2], "pads": [1, 0, 0, 1]}),
    ],
)
def test_columns_are_summed_into_an_image(columns, image, block, attributes):
    data = normal(2, 3 * block[0] * block[1], columns)
    node = helper.make_node("Col2Im", ["x", "image", "block"], ["y"], "col2im", **attributes)
    constants = {"image": np.array(image), "block": np.array(block)}
    assert_same(model_of(node, {"x": data}, constants), {"x": data})


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


@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("mode", ["SAME_LOWER", "SAME_UPPER", "VALID"])
def test_implied_padding_of_a_pooling_is_written_out(operator, mode):
    window = {"kernel_shape": [3, 2], "strides": [2, 3], "auto_pad": mode}
    node = helper.make_node(operator, ["x"], ["y"], "pool", **window)
    data = {"x": normal(1, 3, 9, 8)}
    (pool,) = assert_same(model_of(node, data, {}, opset=17), data).graph.node
    assert "auto_pad" not in {attribute.name for attribute in pool.attribute}


def test_a_dilated_window_is_padded_as_onnxruntime_does():
    window = {"kernel_shape": [3], "strides": [2], "dilations": [2], "auto_pad": "SAME_LOWER"}
    node = helper.make_node("MaxPool", ["x"], ["y"], "pool", **window)
    data = {"x": normal(1, 3, 10)}
    assert_same(model_of(node, data, {}, opset=17), data)


def test_indices_are_refused_by_name():
    node = helper.make_node("MaxPool", ["x"], ["y", "places"], "pool", kernel_shape=[2])
    with pytest.raises(InputError, match="MaxPool node 'pool' returns indices"):
        expand(model_of(node, {"x": normal(1, 3, 9)}, {}, opset=19), EARLY)


@pytest.mark.parametrize(("kernel", "stride", "is_refused"), [(1, 2, True), (3, 2, False)])
def test_a_window_behind_the_end_is_refused_by_name(kernel, stride, is_refused):
    given = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "ceil_mode": 1}
    node = helper.make_node("MaxPool", ["x"], ["y"], "pool", **given)
    model, data = model_of(node, {"x": normal(1, 3, 9, 12)}, {}), normal(1, 3, 9, 12)
    if is_refused:
        with pytest.raises(InputError, match="MaxPool node 'pool' counts a window"):
            expand(model, EARLY)
    else:
        assert_same(model, {"x": data})

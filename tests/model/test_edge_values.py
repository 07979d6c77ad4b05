"""Values at the ends of what operators take: far from zero, none at all, too wide a shift."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from tests.expanded_models import node_model
from tests.made.compiled import outputs
from tests.made.outputs import run_onnxruntime

GENERATOR = np.random.default_rng(5)


@pytest.mark.parametrize("opset", [18, 21])
@pytest.mark.parametrize("offset", [0, 3000])
def test_groups_are_normalized_in_two_passes(opset, offset):
    data = (GENERATOR.standard_normal((2, 4, 3, 8)) + offset).astype("float32")
    scale = np.arange(1, 5 if opset > 18 else 3, dtype="float32")
    arrays = {"x": data, "scale": scale, "shift": -scale}
    node = helper.make_node("GroupNormalization", list(arrays), ["y"], num_groups=2)
    model, feeds = node_model(node, arrays, ["scale", "shift"], opset)
    ((ours,),) = outputs(model, [data])
    rows = data.astype(np.float64).reshape(2, 2, -1)
    apart = rows - rows.mean(-1, keepdims=True)
    normal = (apart / np.sqrt(apart.var(-1, keepdims=True) + 1e-5)).reshape(data.shape)
    factors = (scale if opset > 18 else np.repeat(scale, 2)).reshape(1, 4, 1, 1)
    right = normal * factors - factors
    # What a float's last place at 3000 moves an element of deviation 1.
    assert np.abs(ours - right).max() < (4e-3 if offset else 1e-5)
    if not offset:
        np.testing.assert_allclose(ours, run_onnxruntime(model, feeds, 1)[0], atol=1e-5)


def test_integers_below_zero_are_multiplied_by_their_slope():
    arrays = {"x": np.array([[-3, 0, 4]], np.int32), "slope": np.array([2, 5, 7], np.int32)}
    model, feeds = node_model(helper.make_node("PRelu", list(arrays), ["y"]), arrays, ["slope"])
    ((ours,),) = outputs(model, [arrays["x"]])
    np.testing.assert_array_equal(ours, [[-6, 0, 4]])
    np.testing.assert_array_equal(ours, run_onnxruntime(model, feeds, 1)[0])


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize("padding", ["zeros", "border"])
def test_places_that_are_no_numbers_or_far_outside_are_as_in_onnxruntime(mode, padding):
    image = GENERATOR.standard_normal((1, 2, 5, 4)).astype("float32")
    grid = GENERATOR.uniform(-1, 1, (1, 3, 4, 2)).astype("float32")
    odd = [np.inf, -np.inf, np.nan, 1e30, -1e30]
    grid[0, 0, :, 0], grid[0, 1, :, 1], grid[0, 2, 0, :] = odd[:4], odd[1:], [1e4, -1e4]
    if padding == "zeros":
        grid[0, 2, 1:, 0] = [1e7, -1e9, 1e12]
    arrays = {"x": image, "grid": grid}
    node = helper.make_node("GridSample", list(arrays), ["y"], mode=mode, padding_mode=padding)
    model, feeds = node_model(node, arrays, opset=20)
    ((ours,),) = outputs(model, [image, grid])
    np.testing.assert_allclose(ours, run_onnxruntime(model, feeds, 1)[0], atol=2e-5)

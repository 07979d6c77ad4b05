"""Resize as onnxruntime computes it: every mode, by fractions, in one to three dimensions."""

import re
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from fewtune.errors import InputError
from fewtune.model.converters.resize import COORDINATES, Line, Method, taps
from fewtune.model.lower import lower
from fewtune.runtime.tvm import tvm
from fewtune.task.analysis import call_counts
from tests.made.compiled import error_of, lowered, outputs, scheduled
from tests.made.onnx_text import attributes as text_of
from tests.made.onnx_text import model_of
from tests.made.outputs import run_onnxruntime

TARGET = tvm.target.Target({"kind": "llvm", "num-cores": 2})
KNOWN = sorted(COORDINATES.keys() - {"tf_half_pixel_for_nn"})


def resize_model(
    shape: list[int],
    scales: list[float] | None = None,
    sizes: list[int] | None = None,
    roi: list[float] | None = None,
    **attributes: Any,
) -> ModelProto:
    last = "scales" if sizes is None else ", sizes"
    constants = {"roi": np.array(roi or np.repeat([0.0, 1.0], len(shape)), np.float32)}
    if sizes is not None:
        constants["sizes"] = np.array(sizes)
    if scales is not None:
        constants["scales"] = np.array(scales, np.float32)
    node = f"[resize] y = Resize {text_of(**attributes)} (x, roi, {last})"
    return model_of(f"(float{shape} x) => (float[] y) {{{node}}}", 19, **constants)


@pytest.mark.parametrize("coordinates", KNOWN)
@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_the_nearest_is_onnxruntimes(coordinates, rounding):
    for extent, resized in [(5, 13), (13, 5), (7, 7), (1, 4), (6, 1), (15, 2), (10, 29), (3, 8)]:
        x = np.arange(extent, dtype=np.float32).reshape(1, 1, extent)
        model = resize_model(
            [1, 1, extent],
            sizes=[1, 1, resized],
            mode="nearest",
            coordinate_transformation_mode=coordinates,
            nearest_mode=rounding,
        )
        line = Line(2, extent, resized, np.float32(resized / extent))
        found = taps(line, Method("nearest", coordinates, rounding))
        (expected,) = run_onnxruntime(model, {"x": x}, 1)
        np.testing.assert_array_equal(found.places[:, 0], expected.ravel())


@pytest.mark.parametrize("coordinates", KNOWN)
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_weights_are_onnxruntimes(coordinates, mode):
    for scale in (1.9, 0.6, 1 / 3):
        x = np.random.default_rng(0).standard_normal((1, 1, 1, 12)).astype(np.float32)
        model = resize_model(
            [1, 1, 1, 12],
            scales=[1, 1, 1, scale],
            mode=mode,
            coordinate_transformation_mode=coordinates,
        )
        (expected,) = run_onnxruntime(model, {"x": x}, 1)
        line = Line(3, 12, expected.shape[-1], np.float32(scale))
        found = taps(line, Method(mode, coordinates))
        resized = (x[0, 0, 0][found.places] * found.weights).sum(axis=1)
        np.testing.assert_allclose(resized, expected.ravel(), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "given"),
    [
        ([1, 3, 12, 12], {"scales": [1, 1, 2, 2], "mode": "linear"}),
        ([1, 3, 11, 9], {"sizes": [1, 3, 26, 20], "mode": "nearest", "nearest_mode": "floor"}),
        ([1, 3, 11, 9], {"scales": [1, 1, 0.7, 2], "mode": "cubic"}),
        ([2, 3, 7], {"scales": [1, 1, 2.5], "mode": "linear"}),
        ([1, 2, 4, 5, 3], {"scales": [1, 1, 1.5, 2, 0.7], "mode": "linear"}),
        ([6, 5], {"scales": [1.7, 2.0], "mode": "nearest"}),
        ([1, 2, 37, 50], {"sizes": [1, 2, 11, 70], "mode": "cubic", "antialias": 1}),
        ([2, 37, 50], {"scales": [1, 0.3, 0.45], "mode": "linear", "antialias": 1}),
        ([20, 30], {"sizes": [10, 10], "keep_aspect_ratio_policy": "not_smaller"}),
    ],
)
def test_a_compiled_resize_is_right(shape, given):
    model = resize_model(shape, **given)
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    (expected,) = run_onnxruntime(model, {"x": x}, 1)
    np.testing.assert_allclose(outputs(model, [x])[0][0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("mode", "outside"), [("nearest", 0.0), ("linear", 7.0)])
def test_of_a_region_what_lies_outside_is_one_value(mode, outside):
    given = {"mode": mode, "coordinate_transformation_mode": "tf_crop_and_resize"}
    given |= {"roi": [0, -0.2, 0.1, 1, 1.1, 0.8], "extrapolation_value": outside}
    test_a_compiled_resize_is_right([2, 8, 6], {"sizes": [2, 5, 7], **given})


def test_smoothed_bytes_are_onnxruntimes():
    model = resize_model([1, 3, 37, 50], sizes=[1, 3, 11, 70], mode="cubic", antialias=1)
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.elem_type = TensorProto.UINT8
    x = np.random.default_rng(3).integers(0, 256, [1, 3, 37, 50]).astype(np.uint8)
    (expected,) = run_onnxruntime(model, {"x": x}, 1)
    np.testing.assert_array_equal(outputs(model, [x])[0][0], expected)


@pytest.mark.parametrize(
    "given",
    [
        {"exclude_outside": 1, "mode": "cubic"},
        {"coordinate_transformation_mode": "tf_crop_and_resize", "mode": "linear", "antialias": 1},
    ],
)
def test_a_rare_mode_is_refused_by_name(given):
    model = resize_model([1, 1, 4, 4], sizes=[1, 1, 2, 3], **given)
    with pytest.raises(InputError, match="Resize 'resize': .*onnxruntime serves such a model"):
        lower(model, TARGET, "NCHW")


def test_between_convolutions_a_resize_takes_their_layout_and_fuses():
    generator = np.random.default_rng(2)
    weights = [generator.standard_normal((8, 8, 3, 3)).astype(np.float32) / 8 for _ in range(2)]
    model = model_of(
        """(float[1,8,9,9] x) => (float[] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, w0)
            b = Resize <mode = "linear"> (a, roi, scales)
            c = Sigmoid (b)
            y = Conv <pads = [1, 1, 1, 1]> (c, w1)
        }""",
        13,
        w0=weights[0],
        w1=weights[1],
        roi=np.array([], np.float32),
        scales=np.array([1, 1, 2, 2], np.float32),
    )
    module = lowered(model)
    kernels = call_counts(module)
    assert any(re.fullmatch("fused_resize_.*sigmoid", kernel) for kernel in kernels)
    assert sum("transpose" in kernel for kernel in kernels) <= 2
    for each in (module, scheduled(module)):
        assert error_of(model, each) < 1e-5


def test_scales_that_are_computed_are_refused_by_name():
    model = resize_model([1, 1, 4, 4], scales=[1, 1, 2, 2])
    del model.graph.initializer[1]
    model.graph.input.append(helper.make_tensor_value_info("scales", TensorProto.FLOAT, [4]))
    model.graph.output[0].CopyFrom(
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, 8, 8])
    )
    with pytest.raises(InputError, match="Resize 'resize'"):
        lower(model, TARGET, "NCHW")

"""Transposed convolutions by their phases: the same result, without products with zeros."""

import re

import numpy as np
import pytest
from onnx import ModelProto

from fewtune.errors import VerificationError
from fewtune.model.lower import TRANSPOSED, lower_checked
from fewtune.model.passes import transposed
from fewtune.onnx_graph.bind import bind_shapes
from fewtune.options import ImportOptions
from fewtune.task.analysis import call_counts
from tests import tuned_tiny
from tests.made import onnx_text
from tests.made.compiled import error_of, lowered, scheduled
from tests.made.outputs import run_onnxruntime
from tests.model.passes.test_winograd import BOUND
from tests.tiny_models import random_weight


def model_of(
    data: tuple[int, ...], kernel: tuple[int, ...], is_constant: bool = True, **attributes: object
) -> ModelProto:
    """A transposed convolution with bias and activation."""
    generator = np.random.default_rng(1)
    weights = {"bias": generator.standard_normal(kernel[1] * int(attributes.get("group", 1)))}
    weights["bias"] = weights["bias"].astype(np.float32)
    inputs = f"float{list(data)} x"
    if is_constant:
        weights["weight"] = random_weight(generator, *kernel)
    else:
        inputs += f", float{list(kernel)} weight"
    node = f"sum = ConvTranspose {onnx_text.attributes(**attributes)} (x, weight, bias)"
    return onnx_text.model_of(f"({inputs}) => (float[] y) {{{node} y = Relu (sum)}}", **weights)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "kernel", "attributes"),
    [
        ((1, 5, 6, 7), (5, 7, 2, 2), {"strides": [2, 2]}),
        ((2, 8, 5, 6), (8, 16, 4, 4), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
        (
            (1, 8, 5, 6),
            (8, 3, 3, 3),
            {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]},
        ),
        ((1, 8, 5, 6), (8, 17, 3, 5), {"strides": [3, 2], "pads": [0, 1, 1, 2]}),
    ],
)
def test_phases_agree_with_onnxruntime(data, kernel, attributes):
    model = model_of(data, kernel, **attributes)
    module = lowered(model)
    names = call_counts(module)
    assert any("conv2d" in name for name in names)
    assert not any("conv2d_transpose" in name for name in names)
    (places,) = (name for name in names if "depth_to_space" in name)
    assert "add" in places
    assert "relu" in places
    assert error_of(model, scheduled(module)) < BOUND


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "kernel", "attributes"),
    [
        ((1, 3, 4, 5), (3, 16, 5, 3), {"pads": [2, 1, 2, 1]}),
        ((1, 16, 1, 1), (16, 8, 4, 4), {}),
        ((2, 6, 11), (6, 8, 16), {"strides": [8], "pads": [4, 4]}),
    ],
)
def test_strides_of_one_single_elements_and_rows_agree(data, kernel, attributes):
    model = model_of(data, kernel, **attributes)
    module = lowered(model)
    assert not any("conv2d_transpose" in name for name in call_counts(module))
    assert error_of(model, scheduled(module)) < BOUND


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "kernel", "attributes"),
    [
        ((1, 4, 5, 5), (4, 3, 2, 2), {"strides": [2, 2], "is_constant": False}),
        ((1, 4, 5, 5), (4, 3, 2, 2), {"strides": [2, 2], "pads": [2, 2, 0, 0]}),
        ((1, 4, 3, 3, 3), (4, 3, 2, 2, 2), {"strides": [2, 2, 2]}),
    ],
)
def test_others_are_left_to_tvm(data, kernel, attributes):
    model = model_of(data, kernel, **attributes)
    module = lowered(model)
    names = call_counts(module)
    assert any(re.search(r"conv\dd_transpose", name) for name in names)
    assert not any("depth_to_space" in name for name in names)
    assert error_of(model, module) < BOUND


@pytest.mark.slow
def test_wrong_phases_are_left_out_by_name(monkeypatch):
    model = model_of((1, 4, 5, 5), (4, 16, 4, 4), strides=[2, 2])
    bound = bind_shapes(model, {}, {})
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 4, 5, 5)).astype(np.float32)}
    (wanted,) = run_onnxruntime(bound, feeds, 1)
    kernels = transposed.phase_kernels
    monkeypatch.setattr(transposed, "phase_kernels", lambda *given: kernels(*given)[::-1])

    def check(compiled):  # type: ignore[no-untyped-def]
        (ours,) = compiled.outputs([feeds["x"]])
        if np.abs(ours - wanted).max() > 1e-4:
            raise VerificationError("rows are in the wrong phase")

    made = lower_checked(bound, tuned_tiny.target(), ImportOptions(), check)
    assert made.left_out == {TRANSPOSED: "rows are in the wrong phase"}
    assert any("conv2d_transpose" in name for name in call_counts(made.module))

"""Products in bfloat16, compared with onnxruntime's products of rounded values."""

import numpy as np
import pytest
from onnx import ModelProto, helper, numpy_helper

from fewtune.model.lower import lower
from fewtune.model.lower_checked import has_bf16
from fewtune.runtime.executable import CompiledModel, build_executable
from fewtune.task.calls import call_counts
from fewtune.util.bfloat16 import rounded, widened
from fewtune.verify.session import run_onnxruntime
from tests.quantised_models import FLOAT, model_of, simplified
from tests.tuned_tiny import target

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not has_bf16(target()), reason="the processor has no bf16 products"),
]

RANDOM = np.random.default_rng(0)


def as_bf16(values):
    """Rounded to bf16, as float32."""
    return widened(rounded(values))


def normal(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def convolution(channels, filters, kernel, **given):
    weights = normal(filters, channels // given.get("group", 1), kernel, kernel)
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], **given)
    constants = {"w": weights, "b": normal(filters)}
    shape = (1, channels, 13, 11)
    return model_of([node], {"x": (FLOAT, shape)}, {"y": (FLOAT, None)}, constants), shape


def product(rows, depth, columns):
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    given, made = {"x": (FLOAT, (*rows, depth))}, {"y": (FLOAT, (*rows, columns))}
    return model_of([node], given, made, {"w": normal(depth, columns)}), (*rows, depth)


def rounded_model(model):
    """The model with constants of two axes or more rounded."""
    copy = ModelProto.FromString(model.SerializeToString())
    for tensor in copy.graph.initializer:
        if len(tensor.dims) > 1:
            tensor.CopyFrom(
                numpy_helper.from_array(as_bf16(numpy_helper.to_array(tensor)), tensor.name)
            )
    return copy


def assert_rounds_its_factors_only(model, shape):
    """Results are as accurate as in float32 with rounded factors."""
    lowered = lower(simplified(model), target(), "NHWC", precision="bf16")
    assert any("bf16_" in name for name in call_counts(lowered))
    data = normal(*shape)
    (found,) = CompiledModel(build_executable(lowered, target()), target()).outputs([data])
    (exact,) = run_onnxruntime(rounded_model(model), {"x": as_bf16(data)}, 1)
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-4 * np.abs(exact).max())


@pytest.mark.parametrize("channels", [3, 5, 17])
@pytest.mark.parametrize("filters", [5, 16, 33])
@pytest.mark.parametrize("kernel", [1, 3])
def test_convolutions_of_odd_channels(channels, filters, kernel):
    assert_rounds_its_factors_only(*convolution(channels, filters, kernel, pads=[kernel // 2] * 4))


@pytest.mark.parametrize(
    "given",
    [
        {"pads": [1, 2, 0, 1], "strides": [2, 1]},
        {"pads": [2, 2, 2, 2], "dilations": [2, 2]},
        {"group": 2, "pads": [1, 1, 1, 1]},
    ],
)
def test_strides_dilations_and_groups(given):
    assert_rounds_its_factors_only(*convolution(16, 32, 3, **given))


@pytest.mark.parametrize(("depth", "columns"), [(3, 5), (17, 33), (64, 16)])
@pytest.mark.parametrize("rows", [(1,), (2, 7)])
def test_products(rows, depth, columns):
    assert_rounds_its_factors_only(*product(rows, depth, columns))


def test_an_activation_that_two_kernels_read_is_rounded_once():
    nodes = [
        helper.make_node("Conv", ["x", name], [f"y{name}"], name=name) for name in ("w1", "w2")
    ]
    weights = {"w1": normal(16, 8, 1, 1), "w2": normal(32, 8, 1, 1)}
    outputs = {"yw1": (FLOAT, None), "yw2": (FLOAT, None)}
    model = model_of(nodes, {"x": (FLOAT, (1, 8, 4, 4))}, outputs, weights)
    counts = call_counts(lower(simplified(model), target(), "NHWC", precision="bf16"))
    assert sum(count for name, count in counts.items() if "to_bf16" in name) == 1


def test_nan_and_infinities_stay():
    given = np.array([np.nan, np.inf, -np.inf, 3.4e38, 1.00390625], np.float32)
    found = as_bf16(given)
    assert np.isnan(found[0])
    assert found[1:4].tolist() == [np.inf, -np.inf, np.inf]
    assert found[4] == 1.0

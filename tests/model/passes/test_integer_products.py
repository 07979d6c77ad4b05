"""Integer kernels, compared with onnxruntime's."""

import numpy as np
import pytest
from onnx import numpy_helper

from tests.made.onnx_text import attributes
from tests.quantized_models import (
    assert_within_a_step,
    differences,
    model_of,
    random_bytes,
)

pytestmark = pytest.mark.slow


def convolution(channels, filters, kernel, kind=np.uint8, zero=119, by_channel=True, **given):
    """A QLinearConv of a plane of 13 x 11: LLVM unrolls smaller ones, and takes twice as long."""
    random = np.random.default_rng(0)
    group = given.get("group", 1)
    shape = (1, channels, 13, 11)
    weights = random_bytes(random, np.int8, filters, channels // group, kernel, kernel)
    count = filters if by_channel else 1
    depth = channels // group * kernel**2
    constants = {
        "scale": np.float32(0.021),
        "zero": kind(zero),
        "weights": weights,
        "weight_scale": (random.random(count).astype(np.float32) + 0.5) / 2**7,
        "weight_zero": np.zeros(count, np.int8),
        "out_scale": np.float32(0.012 * np.sqrt(depth)),
        "out_zero": kind(np.iinfo(kind).max - 100),
        "bias": random.integers(-500, 500, filters).astype(np.int32),
    }
    if not by_channel:
        constants["weight_scale"] = constants["weight_scale"][0]
        constants["weight_zero"] = constants["weight_zero"][0]
    node = f"out = QLinearConv {attributes(**given)} (data, {', '.join(constants)})"
    name = np.dtype(kind).name
    model = model_of(f"({name}{list(shape)} data) => ({name}[] out) {{{node}}}", **constants)
    return model, {"data": random_bytes(random, kind, *shape)}


@pytest.mark.parametrize(("channels", "filters", "kernel"), [(3, 5, 3), (17, 33, 3), (17, 5, 1)])
def test_convolutions_of_odd_channels(channels, filters, kernel):
    model, feeds = convolution(channels, filters, kernel, pads=[kernel // 2] * 4)
    kernels = assert_within_a_step(model, feeds)
    assert any("integer_conv2d" in name for name in kernels)


@pytest.mark.parametrize(
    ("group", "given"),
    [
        (1, {"pads": [1, 2, 0, 1], "strides": [2, 1]}),
        (17, {"pads": [2, 2, 2, 2], "dilations": [2, 2]}),
        (1, {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
        (17, {"auto_pad": "SAME_LOWER", "strides": [3, 2]}),
    ],
)
def test_strides_dilations_and_padding(given, group):
    model, feeds = convolution(17, 17, 3, group=group, **given)
    kernels = assert_within_a_step(model, feeds)
    assert any("integer" in name for name in kernels)


@pytest.mark.parametrize(
    ("kind", "zero", "by_channel"),
    [(np.uint8, 255, False), (np.int8, 7, True)],
)
def test_zero_points(kind, zero, by_channel):
    model, feeds = convolution(6, 8, 3, kind, zero, by_channel, pads=[1, 1, 1, 1])
    assert_within_a_step(model, feeds)


def test_sums_do_not_saturate():
    """Products of the largest bytes: the sum of two exceeds 16 bits."""
    model, feeds = convolution(64, 16, 3, zero=0)
    for tensor in model.graph.initializer:
        if tensor.name == "weights":
            tensor.raw_data = np.full((16, 64, 3, 3), -128, np.int8).tobytes()
    feeds["data"][:] = 255
    assert_within_a_step(model, feeds)


@pytest.mark.parametrize(("channels", "filters", "group"), [(32, 48, 16), (17, 34, 17)])
def test_groups_of_several_channels_or_filters_stay_in_floats(channels, filters, group):
    model, feeds = convolution(channels, filters, 1, group=group)
    kernels = assert_within_a_step(model, feeds)
    assert not any("integer" in name for name in kernels)


@pytest.mark.parametrize(("depth", "columns", "by_column"), [(3, 5, True), (17, 33, False)])
def test_products(depth, columns, by_column):
    random, count = np.random.default_rng(0), columns if by_column else 1
    constants = {
        "scale": np.float32(0.02),
        "zero": np.uint8(113),
        "weights": random_bytes(random, np.int8, depth, columns),
        "weight_scale": (random.random(count).astype(np.float32) + 0.5) / 2**7,
        "weight_zero": np.zeros(count, np.int8),
        "out_scale": np.float32(0.02 * np.sqrt(depth)),
        "out_zero": np.uint8(120),
    }
    node = f"out = QLinearMatMul (data, {', '.join(constants)})"
    model = model_of(f"(uint8[2,7,{depth}] data) => (uint8[] out) {{{node}}}", **constants)
    feeds = {"data": random_bytes(random, np.uint8, 2, 7, depth)}
    assert any("integer_matmul" in name for name in assert_within_a_step(model, feeds))


@pytest.mark.parametrize("weight_kind", [np.int8, np.uint8])
def test_dynamic_quantization(weight_kind):
    """As `quantize_dynamic` writes it: the zero point is computed at run time."""
    random = np.random.default_rng(0)
    constants = {
        "weights": random_bytes(random, weight_kind, 19, 24),
        "weight_zero": weight_kind(0 if weight_kind is np.int8 else 128),
        "weight_scale": np.float32(0.01),
    }
    model = model_of(
        """(float[2,6,19] x) => (float[2,6,24] y) {
            q, scale, zero = DynamicQuantizeLinear (x)
            sums = MatMulInteger (q, weights, zero, weight_zero)
            floats = Cast <to = 1> (sums)
            factor = Mul (scale, weight_scale)
            y = Mul (floats, factor)
        }""",
        **constants,
    )
    feeds = {"x": random.standard_normal((2, 6, 19)).astype("f4")}
    (difference,), kernels = differences(model, feeds)
    assert any("integer_matmul" in name for name in kernels)
    assert difference.max() <= 1e-5


@pytest.mark.parametrize(
    ("channels", "filters", "kernel", "weight_zero"),
    [(3, 5, 3, 94), (17, 33, 1, 0)],
)
def test_convolutions_of_unsigned_weights(channels, filters, kernel, weight_zero):
    """As onnxruntime's quantizers write them, but for those that they make signed."""
    model, feeds = convolution(channels, filters, kernel, by_channel=False, pads=[kernel // 2] * 4)
    for tensor in model.graph.initializer:
        if tensor.name == "weights":
            shape = [*tensor.dims]
            drawn = random_bytes(np.random.default_rng(1), np.uint8, *shape)
            tensor.CopyFrom(numpy_helper.from_array(drawn, "weights"))
        if tensor.name == "weight_zero":
            tensor.CopyFrom(numpy_helper.from_array(np.array(weight_zero, np.uint8), tensor.name))
    kernels = assert_within_a_step(model, feeds)
    assert any("integer_conv2d" in name for name in kernels)


@pytest.mark.parametrize("operator", ["ConvInteger", "MatMulInteger"])
@pytest.mark.parametrize("zeros", [(131, 0), (131, 3)])
def test_integer_operators_are_exact(operator, zeros):
    """Weights may be no bytes after subtracting their zero point."""
    random, is_product = np.random.default_rng(0), operator == "MatMulInteger"
    shape, weights = ((5, 9), (9, 6)) if is_product else ((1, 5, 9, 7), (6, 5, 3, 3))
    constants = {
        "weights": random_bytes(random, np.int8, *weights),
        "zero": np.uint8(zeros[0]),
        "weight_zero": np.int8(zeros[1]),
    }
    given = {} if is_product else {"pads": [1, 1, 1, 1]}
    node = f"out = {operator} {attributes(**given)} (data, weights, zero, weight_zero)"
    model = model_of(f"(uint8{list(shape)} data) => (int32[] out) {{{node}}}", **constants)
    feeds = {"data": random_bytes(random, np.uint8, *shape)}
    (difference,), _ = differences(model, feeds)
    assert not difference.any()

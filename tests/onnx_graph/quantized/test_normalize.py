import numpy as np
import pytest

from fewtune.errors import InputError
from tests.expanded_models import assert_node


def floats(*shape):
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def bytes_of(kind, *shape):
    limits = np.iinfo(kind)
    drawn = np.random.default_rng(len(shape)).integers(limits.min, limits.max + 1, shape)
    return drawn.astype(kind)


def scale(value):
    return np.array(value, np.float32)


def scales(count):
    return (np.abs(floats(count)) * 0.02 + 0.001).astype(np.float32)


@pytest.mark.parametrize("extent", [7, 300, 2000])
def test_integer_products_are_exact_beyond_what_float32_holds(extent):
    """The largest possible sums, of products of 255 and 255."""
    inputs = [np.full((3, extent), 255, np.uint8), np.full((extent, 5), 255, np.uint8)]
    assert_node("MatMulInteger", inputs, domain="")
    zeros = [np.array(113, np.uint8), np.arange(5, dtype=np.uint8)]
    inputs = [bytes_of(np.uint8, 2, 3, extent), bytes_of(np.uint8, extent, 5), *zeros]
    assert_node("MatMulInteger", inputs, domain="", constants=(1, 2, 3))


ZEROS = [np.uint8(0), np.uint8(128), np.int8(-7), np.int16(3), np.uint16(300)]


@pytest.mark.parametrize("zero", ZEROS, ids=lambda zero: f"{zero.dtype}_{zero}")
def test_quantizing(zero):
    """Halves are rounded to even; values out of range saturate."""
    halves = (np.arange(-300, 300) * 0.5).astype(np.float32)
    for opset in (21, 13) if zero.dtype.itemsize == 1 else (21,):
        inputs = [halves, scale(1), np.asarray(zero)]
        assert_node("QuantizeLinear", inputs, domain="", opset=opset)
    given = {"domain": "", "opset": 21}
    inputs = [floats(2, 3, 4), scales(3), np.full(3, zero)]
    assert_node("QuantizeLinear", inputs, axis=1, **given)
    inputs = [floats(2, 3, 4), scales(2), np.full(2, zero)]
    assert_node("QuantizeLinear", inputs, axis=-3, **given)
    whole = bytes_of(zero.dtype, 2, 3, 4)
    assert_node("DequantizeLinear", [whole, scales(3), np.full(3, zero)], axis=1, **given)


@pytest.mark.parametrize("shift", [0, 5, -5])
def test_dynamic_quantizing(shift):
    outputs = ["out", "scale", "zero"]
    assert_node("DynamicQuantizeLinear", [floats(3, 5) + np.float32(shift)], outputs, "")
    assert_node("DynamicQuantizeLinear", [np.zeros((3, 5), np.float32)], outputs, "")


def byte(value):
    return np.array(value, np.uint8)


@pytest.mark.parametrize("operator", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize("shape", [(2, 3, 4), (4,)])
def test_sums_and_products(operator, shape):
    inputs = [bytes_of(np.uint8, 2, 3, 4), scale(0.02), byte(11)]
    inputs += [bytes_of(np.uint8, *shape), scale(0.03), byte(7), scale(0.2), byte(90)]
    assert_node(operator, inputs, steps=1)


@pytest.mark.parametrize(
    ("operator", "given"),
    [
        ("QLinearSigmoid", {}),
        ("QLinearLeakyRelu", {"alpha": 0.1}),
        ("QLinearGlobalAveragePool", {"channels_last": 0}),
        ("QLinearAveragePool", {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ],
)
def test_activations_and_poolings_in_floats(operator, given):
    inputs = [bytes_of(np.uint8, 2, 4, 6, 6), scale(0.05), byte(120), scale(0.04), byte(3)]
    assert_node(operator, inputs, constants=range(1, 5), steps=1, **given)


def test_concatenation():
    inputs = [scale(0.1), byte(3), bytes_of(np.uint8, 2, 3), scale(0.2), byte(1)]
    inputs += [bytes_of(np.uint8, 2, 4), scale(0.05), byte(100)]
    assert_node("QLinearConcat", inputs, axis=1, steps=1, constants=(0, 1, 3, 4, 6, 7))


@pytest.mark.parametrize("by_column", [False, True])
@pytest.mark.parametrize("quantized", [False, True])
def test_dense(by_column, quantized):
    right = [scales(5), np.zeros(5, np.int8)] if by_column else [scale(0.03), np.int8(0)]
    inputs = [bytes_of(np.uint8, 3, 4), scale(0.02), byte(113), bytes_of(np.int8, 5, 4)]
    inputs += [np.asarray(each) for each in right] + [np.arange(5, dtype=np.int32)]
    inputs += [scale(0.1), byte(9)] if quantized else [None, None]
    assert_node("QGemm", inputs, transB=1, constants=(3, 4, 5))


@pytest.mark.parametrize("zero", [0, 3])
def test_a_mean_halfway_between_two_bytes_is_off_by_at_most_a_step(zero):
    data = bytes_of(np.uint8, 1, 3, 8, 8)
    # With a power of two as scale every sum is exact, so that halves occur.
    scale, place = np.array(0.0625, np.float32), np.array(zero, np.uint8)
    arrays = [data, scale, place, scale, place]
    given = {"kernel_shape": [2, 2], "strides": [2, 2]}
    # With an odd zero point onnxruntime rounds halves the other way.
    assert_node("QLinearAveragePool", arrays, constants=range(1, 5), steps=zero % 2, **given)


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_a_choice_of_bytes_of_two_scales(kind):
    least = np.iinfo(kind).min
    chosen = np.random.default_rng(0).integers(0, 2, (3, 1)).astype(bool)
    first, second = (
        np.random.default_rng(seed).integers(least, least + 256, (3, 4)).astype(kind)
        for seed in range(2)
    )
    scales = [np.array(scale, np.float32) for scale in (0.07, 0.11, 0.13)]
    zeros = [np.array(least + place, kind) for place in (20, 130, 100)]
    places = zip(scales, zeros, strict=True)
    inputs = [chosen, first, *next(places), second, *next(places), *next(places)]
    assert_node("QLinearWhere", inputs, constants=[2, 3, 5, 6, 7, 8])


def test_channels_that_come_last_are_refused_by_name():
    inputs = [bytes_of(np.uint8, 2, 6, 6, 4), scale(0.05), byte(120), scale(0.04), byte(3)]
    with pytest.raises(InputError, match="GlobalAveragePool node 'node' has its channels last"):
        assert_node("QLinearGlobalAveragePool", inputs, channels_last=1)

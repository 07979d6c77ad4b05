"""Quantized graphs rewritten in integers, compared by onnxruntime."""

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper
from onnxruntime.quantization import QuantFormat, QuantType

from fewtune.onnx_graph.quantized.lift import lift
from tests.made.onnx_text import attributes
from tests.made.outputs import run_onnxruntime
from tests.quantized_models import (
    model_of,
    operators,
    quantized_network,
    simplified,
)


def outputs(model, feeds):
    return run_onnxruntime(model, feeds, 1)


@pytest.mark.parametrize(
    "given",
    [
        {"activation_type": QuantType.QUInt8},
        {"activation_type": QuantType.QInt8, "per_channel": True},
        {"activation_type": QuantType.QUInt8, "quant_format": QuantFormat.QOperator},
    ],
)
def test_a_network_computes_in_bytes_throughout(given, tmp_path):
    """Convolutions, a pool, a residual, a concatenation, a mean and a product."""
    model, feeds = quantized_network(tmp_path, weight_type=QuantType.QInt8, **given)
    result = simplified(model)
    found = operators(result)
    assert (found["ConvInteger"], found["MatMulInteger"]) == (4, 1)
    assert not {"Conv", "Gemm", "MatMul"} & found.keys()
    pools = [node for node in result.graph.node if node.op_type in ("MaxPool", "Concat")]
    types = {value.name: value.type.tensor_type.elem_type for value in result.graph.value_info}
    assert {types[node.output[0]] for node in pools} == {TensorProto.UINT8}
    (actual,), (expected,) = outputs(result, feeds), outputs(model, feeds)
    # At most a few outputs may differ by one step.
    step = np.abs(expected).max() / 100
    assert np.abs(actual - expected).max() <= step


def chain(nodes, out=(0.05, 100), shape=(1, 4, 6, 6), more="", **inside):
    """Bytes that are dequantized, go through nodes from ``a`` to ``b``, and are quantized again."""
    text = f"""(uint8{list(shape)} x) => (uint8[] y{more}) {{
        a = DequantizeLinear (x, x_scale, x_zero)
        {nodes}
        y = QuantizeLinear (b, y_scale, y_zero)
    }}"""
    scales = {"x_scale": np.float32(0.04), "y_scale": np.float32(out[0])}
    zeros = {"x_zero": np.uint8(90), "y_zero": np.uint8(out[1])}
    model = model_of(text, **scales, **zeros, **inside)
    feeds = {"x": np.random.default_rng(1).integers(0, 256, shape).astype(np.uint8)}
    return model, feeds


CHAINS = {
    "relu": "b = Relu (a)",
    "clip": "b = Clip (a, low, high)",
    "max pool": "b = MaxPool <kernel_shape = [2, 2]> (a)",
    "mean": "b = AveragePool <kernel_shape = [3, 3], strides = [2, 2]> (a)",
    "padded mean": """b = AveragePool
        <kernel_shape = [3, 3], pads = [1, 1, 1, 1], count_include_pad = 1> (a)""",
    "sum with itself": "b = Add (a, a)",
    "product with itself": "b = Mul (a, a)",
    "transposed": "b = Transpose <perm = [0, 2, 3, 1]> (a)",
    "joined": "b = Concat <axis = 1> (a, a)",
    "sigmoid": "b = Sigmoid (a)",
    "no change": "b = Identity (a)",
    "upsampled": 'b = Resize <mode = "nearest", nearest_mode = "floor"> (a, , sizes)',
}


@pytest.mark.parametrize("same_scale", [False, True])
@pytest.mark.parametrize("name", list(CHAINS))
def test_operators_between_dequantization_and_quantization(name, same_scale):
    inside = {
        "low": np.float32(-1),
        "high": np.float32(2.5),
        "sizes": np.array([1, 1, 2, 2], np.float32),
    }
    out = (0.04, 90) if same_scale else (0.053, 77)
    model, feeds = chain(CHAINS[name], out, **inside)
    result = simplified(model)
    difference = np.abs(outputs(result, feeds)[0].astype(int) - outputs(model, feeds)[0])
    assert difference.max() <= 1
    assert (difference > 0).mean() <= 0.02


def test_bytes_of_one_scale_are_moved_without_arithmetic():
    model, _ = chain(CHAINS["max pool"], (0.04, 90))
    assert set(operators(simplified(model))) <= {"MaxPool", "Identity"}


def test_a_tensor_that_is_also_needed_in_floats_is_computed_once():
    weights = np.random.default_rng(1).integers(-127, 128, (4, 4, 1, 1)).astype(np.int8)
    constants = {"w": weights, "w_scale": np.float32(0.01), "w_zero": np.int8(0)}
    nodes = "wf = DequantizeLinear (w, w_scale, w_zero) b = Conv (a, wf) gate = Sigmoid (b)"
    model, feeds = chain(nodes, more=", float[1,4,6,6] gate", **constants)
    result = simplified(model)
    assert operators(result)["ConvInteger"] == 1
    for actual, expected in zip(outputs(result, feeds), outputs(model, feeds), strict=True):
        assert np.abs(actual.astype(float) - expected).max() <= 1


@pytest.mark.parametrize("zeros", [119, 255])
@pytest.mark.parametrize("is_known", [True, False])
def test_products_of_weights_beyond_signed_bytes_are_exact(zeros, is_known):
    """Less their zero points, weights reach 255 - 119: signed bytes need a shift of 128."""
    weights = np.random.default_rng(1).integers(0, 256, (40, 5)).astype(np.uint8)
    weights[0], weights[1] = 0, 255
    constants = {"w": weights, "w_zero": np.array(zeros, np.uint8)}
    node = "y = MatMulInteger (x, w, x_zero, w_zero)"
    feeds = {"x": np.random.default_rng(1).integers(0, 256, (2, 3, 40)).astype(np.uint8)}
    known = {"x_zero": np.array(33, np.uint8)}
    (constants if is_known else feeds).update(known)
    inputs = ", ".join(f"uint8{list(array.shape) or ''} {name}" for name, array in feeds.items())
    model = model_of(f"({inputs}) => (int32[] y) {{{node}}}", **constants)
    result = simplified(model)
    signed = [each for each in result.graph.initializer if list(each.dims) == [40, 5]]
    assert [numpy_helper.to_array(each).dtype for each in signed] == [np.int8]
    (actual,), (expected,) = outputs(result, feeds), outputs(model, feeds)
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("zeros", [3, 200])
@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"pads": [1, 0, 1, 2], "strides": [2, 1]},
        {"dilations": [2, 1], "pads": [2, 2, 2, 2]},
        {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
    ],
)
def test_convolutions_of_weights_beyond_signed_bytes_are_exact(zeros, is_known, given):
    """Less their zero points they are up to 255 - 3: bytes about 128, and the windows' sums."""
    constants = {
        "w": np.random.default_rng(1).integers(0, 256, (4, 5, 3, 2)).astype(np.uint8),
        "w_zero": np.array(zeros, np.uint8),
    }
    node = f"y = ConvInteger {attributes(**given)} (x, w, x_zero, w_zero)"
    feeds = {"x": np.random.default_rng(1).integers(0, 256, (2, 5, 7, 6)).astype(np.uint8)}
    known = {"x_zero": np.array(33, np.uint8)}
    (constants if is_known else feeds).update(known)
    inputs = ", ".join(f"uint8{list(array.shape) or ''} {name}" for name, array in feeds.items())
    model = model_of(f"({inputs}) => (int32[] y) {{{node}}}", **constants)
    result = simplified(model)
    signed = [each for each in result.graph.initializer if list(each.dims) == [4, 5, 3, 2]]
    assert [numpy_helper.to_array(each).dtype for each in signed] == [np.int8]
    # onnxruntime has one zero point of weights; several are computed from their definition.
    centered = constants["w"].astype(np.float32) - np.reshape(zeros, (-1, 1, 1, 1))
    plain = f"y = Conv {attributes(**given)} (x, w)"
    text = f"(float[2,5,7,6] x) => (float[] y) {{{plain}}}"
    wanted_of = model_of(text, w=centered.astype("f4"))
    (wanted,) = outputs(wanted_of, {"x": feeds["x"].astype(np.float32) - 33})
    (actual,) = outputs(result, feeds)
    np.testing.assert_array_equal(actual, wanted)


@pytest.mark.parametrize("zeros", [3, 200])
@pytest.mark.parametrize("operator", ["Conv", "MatMul", "Gemm"])
def test_dequantized_weights_beyond_signed_bytes_are_bytes(operator, zeros):
    """255 - 3 is no signed byte: signed bytes and a multiple of what is summed."""
    is_plane = operator == "Conv"
    axis = 1 if operator == "MatMul" else 0
    shape = (1, 4, 6, 6) if is_plane else (6, 4)
    constants = {
        "w": np.random.default_rng(1)
        .integers(0, 256, (4, 4, 1, 1) if is_plane else (4, 4))
        .astype(np.uint8),
        "w_scale": np.full(np.shape(zeros), 0.01, np.float32),
        "w_zero": np.array(zeros, np.uint8),
    }
    more = "<transB = 1>" if operator == "Gemm" else ""
    nodes = f"""wf = DequantizeLinear <axis = {axis}> (w, w_scale, w_zero)
        b = {operator} {more} (a, wf)"""
    model, feeds = chain(nodes, shape=shape, **constants)
    result = simplified(model)
    assert not {"Conv", "MatMul", "Gemm"} & operators(result).keys()
    difference = np.abs(outputs(result, feeds)[0].astype(int) - outputs(model, feeds)[0])
    assert difference.max() <= 1


@pytest.mark.parametrize("axis", [0, 1])
def test_weights_in_blocks_are_dequantized(axis):
    """The last block is shorter."""
    random, blocks = np.random.default_rng(1), (3, 6) if axis == 0 else (5, 3)
    text = """(float[2, 5] x) => (float[2, 6] y) {
        wf = DequantizeLinear <block_size = 2, axis = AXIS> (w, scale, zero) y = MatMul (x, wf)
    }"""
    model = model_of(
        text.replace("AXIS", str(axis)),
        opset=21,
        w=random.integers(-128, 128, (5, 6)).astype(np.int8),
        scale=random.random(blocks, np.float32),
        zero=random.integers(-9, 9, blocks).astype(np.int8),
    )
    result, feeds = simplified(model), {"x": random.random((2, 5), np.float32)}
    assert "DequantizeLinear" not in operators(result)
    np.testing.assert_allclose(outputs(result, feeds)[0], outputs(model, feeds)[0], rtol=1e-5)


@pytest.mark.parametrize(("channels", "group", "scale"), [(4, 4, 0.3), (8192, 1, 1500.0)])
def test_weights_whose_windows_sums_are_not_known_stay_in_floats(channels, group, scale):
    """Of several groups there are several sums; of many channels float32 does not hold them."""
    constants = {
        "w": np.random.default_rng(1)
        .integers(0, 256, (4, channels // group, 3, 3))
        .astype(np.uint8),
        "w_scale": np.float32(0.01),
        "w_zero": np.uint8(3),
    }
    nodes = f"wf = DequantizeLinear (w, w_scale, w_zero) b = Conv <group = {group}> (a, wf)"
    model, feeds = chain(nodes, (scale, 100), (1, channels, 3, 3), **constants)
    result = simplified(model)
    assert operators(result)["Conv"] == 1
    assert "ConvInteger" not in operators(result)
    difference = np.abs(outputs(result, feeds)[0].astype(int) - outputs(model, feeds)[0])
    assert difference.max() <= 1


def test_a_float_model_is_left_as_it_is():
    model = model_of("(float[2] x) => (float[2] y) {y = Relu (x)}")
    assert lift(model) is model

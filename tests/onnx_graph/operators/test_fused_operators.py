import numpy as np
import pytest

from tests.expanded_models import assert_node

GENERATOR = np.random.default_rng(0)


def floats(*shape):
    return GENERATOR.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    "given",
    [
        {"activation": "Relu", "pads": [1, 1, 1, 1]},
        {"activation": "LeakyRelu", "activation_params": [0.2], "strides": [2, 2]},
        {"activation": "Clip", "activation_params": [-0.5, 0.5]},
        {"activation": "HardSigmoid", "activation_params": [0.3, 0.4]},
        {},
    ],
)
def test_convolution_with_activation(given):
    assert_node("FusedConv", [floats(1, 3, 9, 7), floats(4, 3, 3, 3), floats(4)], **given)


def test_convolution_with_sum():
    inputs = [floats(1, 3, 9, 7), floats(4, 3, 3, 3), floats(4), floats(1, 4, 7, 5)]
    assert_node("FusedConv", inputs, activation="Relu")


def test_dense_with_activation():
    inputs = [floats(3, 4), floats(5, 4), floats(5)]
    assert_node("FusedGemm", inputs, activation="Relu", transB=1, alpha=0.5)
    assert_node("FusedGemm", inputs, activation="LeakyRelu", transB=1, activation_alpha=0.3)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("second", [0, 1])
def test_product_of_transposed(first, second):
    operands = [floats(2, 3, 4, 5), floats(2, 3, 5, 6)]
    for index, turned in enumerate((first, second)):
        if turned:
            operands[index] = operands[index].swapaxes(-1, -2)
    assert_node(
        "FusedMatMul",
        [np.ascontiguousarray(operand) for operand in operands],
        transA=first,
        transB=second,
        alpha=0.5,
    )


@pytest.mark.parametrize("operator", ["Gelu", "QuickGelu", "FastGelu", "BiasGelu"])
def test_gelus(operator):
    inputs = [floats(2, 3, 5)]
    if operator in ("FastGelu", "BiasGelu"):
        inputs.append(floats(5))
    assert_node(operator, inputs)


@pytest.mark.parametrize("opset", [11, 13, 17])
@pytest.mark.parametrize("skip", [(2, 3, 8), (3, 8), (1, 3, 8)])
def test_layer_norm_of_a_sum(opset, skip):
    total = ["out", "", "", "sum"]
    inputs = [floats(2, 3, 8), floats(*skip), floats(8), floats(8), floats(8)]
    assert_node("SkipLayerNormalization", inputs, total, opset=opset, epsilon=1e-5)
    assert_node("SkipLayerNormalization", inputs[:3], opset=opset)
    inputs[3:] = [floats(8)]
    assert_node("SkipSimplifiedLayerNormalization", inputs, total, opset=opset)
    simple = [floats(2, 3, 8), floats(8)]
    assert_node("SimplifiedLayerNormalization", simple, domain="", opset=opset, axis=-1)


MASKS = {
    "none": None,
    "keys": np.array([[1, 1, 1, 0, 0], [1] * 5], np.int32),
    # Causal, the first rows see nothing: padding weighs more than the future.
    "padded before": np.array([[0, 0, 1, 1, 1], [0, 1, 1, 1, 1]], np.int32),
    "pairs": np.concatenate([np.ones((2, 5, 1)), np.eye(5)[None].repeat(2, 0)[..., 1:]], -1).astype(
        np.int32
    ),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("causal", [0, 1])
def test_attention(mask, causal):
    inputs = [floats(2, 5, 8), floats(8, 24), floats(24), MASKS[mask]]
    assert_node("Attention", inputs, num_heads=2, unidirectional=causal)


@pytest.mark.parametrize("causal", [0, 1])
def test_attention_with_bias(causal):
    inputs = [floats(2, 5, 8), floats(8, 24), floats(24), None]
    given = {"num_heads": 2, "unidirectional": causal}
    assert_node("Attention", [*inputs, None, floats(2, 2, 5, 5)], **given)
    sizes = [floats(2, 5, 8), floats(8, 28), floats(28)]
    assert_node("Attention", sizes, num_heads=2, qkv_hidden_sizes=[8, 8, 12], scale=0.3)


@pytest.mark.parametrize(
    "others",
    [
        [floats(2, 7, 8), floats(2, 7, 12)],
        [floats(2, 7, 8), floats(2, 7, 8), floats(24)],
        [floats(2, 5, 8), floats(2, 5, 8), None, MASKS["keys"]],
        [floats(2, 5, 8), floats(2, 5, 8), None, None, floats(1, 1, 5, 5)],
        [floats(2, 2, 7, 4), floats(2, 2, 7, 4)],
    ],
)
def test_attention_of_three_inputs(others):
    assert_node("MultiHeadAttention", [floats(2, 5, 8), *others], num_heads=2)


def test_attention_of_three_inputs_with_past():
    inputs = [floats(2, 5, 8), floats(2, 5, 8), floats(2, 5, 8), None, None, None]
    inputs += [floats(2, 2, 3, 4), floats(2, 2, 3, 4)]
    assert_node("MultiHeadAttention", inputs, ["out", "keys", "values"], num_heads=2)


def test_quantised_attention_equals_that_of_dequantised_inputs():
    inputs = [
        GENERATOR.integers(0, 255, (1, 3, 8)).astype(np.uint8),
        GENERATOR.integers(-100, 100, (8, 24)).astype(np.int8),
        floats(24),
        np.float32(0.02),
        np.float32(0.01),
        None,
        np.uint8(120),
        np.int8(0),
    ]
    assert_node("QAttention", inputs, constants=(1, 2, 3, 4, 6, 7), num_heads=2)

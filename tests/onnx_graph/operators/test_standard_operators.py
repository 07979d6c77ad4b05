"""Rewritten standard operators: onnxruntime returns the same for both forms."""

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, helper

from fewtune.errors import InputError
from fewtune.onnx_graph.operators.expand import EARLY, expand, expand_functions
from fewtune.onnx_graph.simplify import with_shapes
from tests.expanded_models import assert_node, node_model, normal
from tests.made.outputs import run_onnxruntime

Arrays = dict[str, np.ndarray]


def check(
    operator: str,
    feeds: Arrays,
    constants: Arrays | None = None,
    outputs: int = 1,
    opset: int = 23,
    **attributes: Any,
) -> ModelProto:
    """Compare one node with what it is expanded to, which is returned."""
    arrays, names = {**feeds, **(constants or {})}, [f"y{i}" for i in range(outputs)]
    node = helper.make_node(operator, [*arrays], names, name="node", **attributes)
    model, _ = node_model(node, arrays, [*(constants or {})], opset)
    expanded = expand(with_shapes(expand_functions(with_shapes(model))), EARLY)
    expected, actual = run_onnxruntime(model, feeds, 1), run_onnxruntime(expanded, feeds, 1)
    for given, wanted in zip(actual, expected, strict=True):
        np.testing.assert_allclose(given, wanted, rtol=1e-4, atol=1e-5)
    return expanded


def is_gone(model: ModelProto, operator: str) -> bool:
    return operator not in {node.op_type for node in model.graph.node}


@pytest.mark.parametrize(
    ("data", "kernel", "attributes"),
    [
        ((1, 3, 16, 16), (3, 4, 3, 3), {"strides": [2, 2], "output_shape": [32, 32]}),
        ((1, 3, 9, 7), (3, 2, 3, 3), {"strides": [3, 2], "output_shape": [27, 14]}),
        ((3, 4, 7), (4, 1, 5), {"strides": [3], "pads": [2, 1], "group": 2}),
        ((1, 2, 7), (2, 3, 4), {"strides": [2], "output_padding": [1], "pads": [1, 1]}),
    ],
)
def test_a_transposed_convolution_has_the_padding_of_its_shape(data, kernel, attributes):
    weights = {"w": normal(*kernel)}
    model = check("ConvTranspose", {"x": normal(*data)}, weights, opset=17, **attributes)
    (node,) = (each for each in model.graph.node if each.op_type == "ConvTranspose")
    assert "output_shape" not in {a.name for a in node.attribute}


def test_a_dilated_transposed_convolution_is_refused_by_name():
    feeds, constants = {"x": normal(1, 2, 6, 6)}, {"w": normal(2, 2, 3, 3)}
    with pytest.raises(InputError, match="ConvTranspose node 'node' is dilated"):
        check("ConvTranspose", feeds, constants, opset=17, dilations=[1, 2])


@pytest.mark.parametrize(
    "attributes",
    [{}, {"is_causal": 1}, {"softcap": 2.0, "scale": 0.3}, {"is_causal": 1, "softcap": 3.0}],
)
@pytest.mark.parametrize("is_flat", [False, True])
def test_attention_becomes_products_and_a_softmax(attributes, is_flat):
    if is_flat:
        feeds = {"q": normal(2, 5, 24), "k": normal(2, 7, 12), "v": normal(2, 7, 10)}
        attributes = attributes | {"q_num_heads": 4, "kv_num_heads": 2}
    else:
        feeds = {"q": normal(2, 4, 5, 6), "k": normal(2, 2, 7, 6), "v": normal(2, 2, 7, 5)}
    assert is_gone(check("Attention", feeds, **attributes), "Attention")
    masked = feeds | {"mask": normal(5, 7) > 0}
    masked["mask"][:, 0] = True
    assert is_gone(check("Attention", masked, **attributes), "Attention")


def test_attention_joins_the_past():
    feeds = {"q": normal(1, 2, 3, 8), "k": normal(1, 2, 3, 8), "v": normal(1, 2, 3, 8)}
    feeds |= {"mask": normal(3, 9), "past_k": normal(1, 2, 6, 8), "past_v": normal(1, 2, 6, 8)}
    assert is_gone(check("Attention", feeds, outputs=3, is_causal=1), "Attention")


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("turned", [0, 4])
def test_rotary_embedding_becomes_products(interleaved, turned):
    caches = {"cos": normal(10, (turned or 8) // 2), "sin": normal(10, (turned or 8) // 2)}
    places = {"places": np.array([[1, 2, 9], [0, 3, 4]], np.int64)}
    for x in (normal(2, 4, 3, 8), normal(2, 3, 32)):
        given = {"interleaved": interleaved, "rotary_embedding_dim": turned, "num_heads": 4}
        model = check("RotaryEmbedding", {"x": x} | caches | places, **given)
        assert is_gone(model, "RotaryEmbedding")


@pytest.mark.parametrize("names", [["scale"], ["scale", "bias"]])
def test_a_layer_normalisation_of_doubles_is_written_out(names):
    constants = {name: normal(4).astype(np.float64) for name in names}
    feeds = {"x": normal(2, 3, 4).astype(np.float64)}
    model = check("LayerNormalization", feeds, constants, opset=17)
    assert is_gone(model, "LayerNormalization")


RANDOM = np.random.default_rng(0)


ROWS = RANDOM.standard_normal((2, 3, 4)).astype(np.float32)


@pytest.mark.parametrize("opset", [11, 14])
@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_a_layer_normalization_in_an_older_operator_set(opset, kind):
    data, scale = ROWS.astype(kind), np.array([1, 2, 0.5, -1], kind)
    for more in ([scale], [scale, scale]):
        given = {"domain": "", "opset": opset, "tolerance": 1e-3 if kind == np.float16 else 2e-5}
        assert_node("LayerNormalization", [data, *more], constants=(1,), **given)

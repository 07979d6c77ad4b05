from collections import Counter

import numpy as np
import pytest
from onnx import helper

from fewtune.errors import InputError
from fewtune.onnx_graph.operators.expand import UNROLLED, expand
from fewtune.verify.session import run_onnxruntime
from tests.expanded_models import assert_same
from tests.made.layers import GATES, layer


@pytest.mark.slow
@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize("lengths", [None, [5, 2, 3], [4, 0, 1]])
def test_a_layer_equals_that_of_onnxruntime(kind, direction, states, lengths):
    assert_same(*layer(kind, direction=direction, states=states, lengths=lengths))


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("LSTM", {"peepholes": True, "direction": "bidirectional"}),
        ("LSTM", {"peepholes": True, "states": False, "clip": 0.3}),
        ("LSTM", {"input_forget": 1}),
        ("LSTM", {"outputs": ["", "", "c"]}),
        ("GRU", {"linear_before_reset": 1, "direction": "bidirectional"}),
        ("GRU", {"linear_before_reset": 1, "states": False, "clip": 0.3}),
        ("GRU", {"bias": False, "linear_before_reset": 1}),
        ("GRU", {"clip": 0.3}),
        ("RNN", {"bias": False, "states": False}),
        ("RNN", {"clip": 0.3, "outputs": ["", "last"]}),
    ],
)
def test_variants(kind, given):
    assert_same(*layer(kind, **given))


@pytest.mark.parametrize("opset", [7, 9, 12, 21])
@pytest.mark.parametrize("kind", GATES)
def test_operator_sets_and_sizes(kind, opset):
    assert_same(*layer(kind, opset=opset, steps=1, batch=1))
    assert_same(*layer(kind, opset=opset, steps=20, batch=1))


@pytest.mark.parametrize(
    "name", ["Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu"]
)
def test_activations_take_their_parameters_in_order(name):
    given = {"activation_alpha": [0.3, 0.4], "activation_beta": [0.1, 0.2]}
    model, feeds = layer("RNN", direction="bidirectional", activations=[name] * 2, **given)
    assert_same(model, feeds)


@pytest.mark.parametrize("name", ["Affine", "HardSigmoid", "ScaledTanh", "Softsign", "Softplus"])
def test_activations_without_parameters(name):
    assert_same(*layer("RNN", activations=[name]))


def test_batch_first_layout_is_a_transpose():
    model, feeds = layer("GRU", direction="bidirectional", states=False)
    batch_first, _ = layer("GRU", direction="bidirectional", states=False, layout=1)
    batch_first.graph.input[0].CopyFrom(
        helper.make_tensor_value_info("x", 1, feeds["x"].transpose(1, 0, 2).shape)
    )
    # onnxruntime itself does not run this layout.
    ours = run_onnxruntime(
        expand(batch_first, UNROLLED), {"x": feeds["x"].transpose(1, 0, 2).copy()}, 1
    )
    sequence, last = run_onnxruntime(model, feeds, 1)
    np.testing.assert_allclose(ours[0], sequence.transpose(2, 0, 1, 3), atol=1e-5)
    np.testing.assert_allclose(ours[1], last.transpose(1, 0, 2), atol=1e-5)


def test_all_steps_share_one_product_of_the_inputs():
    result = assert_same(*layer("LSTM", steps=9, batch=1, states=False))
    counts = Counter(node.op_type for node in result.graph.node)
    # One product of all inputs, one of each step's state; the first state is zero.
    assert counts["MatMul"] == 1 + 8
    assert counts["Gather"] == 9


def test_too_many_steps_are_refused_by_name():
    with pytest.raises(InputError, match=r"LSTM node 'layer' has 3000 steps"):
        expand(layer("LSTM", steps=3000)[0], UNROLLED)

from collections import Counter

import pytest

from fewtune.errors import InputError
from tests.expanded_models import assert_same, expanded
from tests.made.layers import GATES, layer


@pytest.mark.slow
@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
@pytest.mark.parametrize(
    ("states", "lengths"), [(True, None), (False, [5, 2, 3]), (True, [4, 0, 1])]
)
def test_a_layer_equals_that_of_onnxruntime(kind, direction, states, lengths):
    assert_same(*layer(kind, direction=direction, states=states, lengths=lengths))


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("LSTM", {"outputs": ["", "", "c"]}),
        ("GRU", {"linear_before_reset": 1, "direction": "bidirectional"}),
        ("GRU", {"linear_before_reset": 1, "states": False}),
        ("GRU", {"bias": False, "linear_before_reset": 1}),
        ("RNN", {"bias": False, "states": False}),
        ("RNN", {"outputs": ["", "last"]}),
    ],
)
def test_variants(kind, given):
    assert_same(*layer(kind, **given))


@pytest.mark.parametrize("opset", [11, 12, 21])
@pytest.mark.parametrize("kind", GATES)
def test_operator_sets_and_sizes(kind, opset):
    assert_same(*layer(kind, opset=opset, steps=1, batch=1))
    assert_same(*layer(kind, opset=opset, steps=20, batch=1))


@pytest.mark.parametrize(
    "given",
    [
        {"peepholes": True},
        {"clip": 0.3},
        {"input_forget": 1},
        {"layout": 1},
        {"activations": ["Sigmoid", "Elu", "Tanh"], "activation_alpha": [0.3]},
    ],
)
def test_forms_that_no_exporter_writes_are_refused_by_name(given):
    with pytest.raises(InputError, match=r"LSTM node 'layer' has peepholes, or one of .*clip"):
        expanded(layer("LSTM", **given)[0])


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        ("RNN", {"activations": ["Relu"]}, "other activations"),
        ("GRU", {"linear_before_reset": 0}, "linear_before_reset is 0"),
    ],
)
def test_other_formulas_are_refused_by_name(kind, given, said):
    with pytest.raises(InputError, match=f"{kind} node 'layer' .*{said}"):
        expanded(layer(kind, **given)[0])


def test_all_steps_share_one_product_of_the_inputs():
    result = assert_same(*layer("LSTM", steps=9, batch=1, states=False))
    counts = Counter(node.op_type for node in result.graph.node)
    # One product of all inputs, one of each step's state; the first state is zero.
    assert counts["MatMul"] == 1 + 8
    assert counts["Gather"] == 9


def test_too_many_steps_are_refused_by_name():
    with pytest.raises(InputError, match=r"LSTM node 'layer' has 3000 steps"):
        expanded(layer("LSTM", steps=3000)[0])

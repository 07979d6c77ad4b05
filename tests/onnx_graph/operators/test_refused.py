"""Operators that no tuned network contains are refused by node, with what serves the model."""

import pytest
from onnx import ModelProto, TensorProto, helper

from fewtune.errors import InputError
from fewtune.onnx_graph.checks import refuse_untuned


def model_of(operator: str, domain: str) -> ModelProto:
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    node = helper.make_node(operator, ["x"], ["y"], "last", domain=domain)
    graph = helper.make_graph([node], "one", [info], [helper.make_empty_tensor_value_info("y")])
    return helper.make_model(graph)


@pytest.mark.parametrize("is_in_function", [False, True])
@pytest.mark.parametrize(
    ("operator", "domain"),
    [
        ("TreeEnsembleRegressor", "ai.onnx.ml"),
        ("ZipMap", "ai.onnx.ml"),
        ("TfIdfVectorizer", ""),
        ("Scan", ""),
        ("GroupQueryAttention", "com.microsoft"),
    ],
)
def test_the_node_is_named_and_what_serves_it(operator, domain, is_in_function):
    model = model_of(operator, domain)
    if is_in_function:
        body = [model.graph.node.pop()]
        model.functions.append(helper.make_function("own", "Body", ["x"], ["y"], body, []))
    with pytest.raises(InputError, match=f"{operator} node 'last' .*with onnxruntime") as caught:
        refuse_untuned(model)
    assert caught.value.exit_code == 2


def test_an_operator_of_a_network_is_not_refused():
    refuse_untuned(model_of("Relu", ""))

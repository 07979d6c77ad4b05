"""Calls of a model's own functions are replaced by their bodies."""

import numpy as np
import onnx
import pytest
from onnx import FunctionProto, ModelProto, TensorProto, helper

from fewtune.onnx_graph.functions import inlined
from fewtune.verify.session import run_onnxruntime

OWN = "own"
OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid(OWN, 1)]


def function(name: str, node: onnx.NodeProto, default: float) -> FunctionProto:
    """A function of one node, whose ``alpha`` is an attribute of the function."""
    alpha = node.attribute.add()
    alpha.name = alpha.ref_attr_name = "alpha"
    alpha.type = onnx.AttributeProto.FLOAT
    defaults = [helper.make_attribute("alpha", default)]
    return helper.make_function(OWN, name, ["x"], ["y"], [node], OPSETS, attribute_protos=defaults)


def leaky(calls: list[onnx.NodeProto]) -> ModelProto:
    inner = helper.make_node("LeakyRelu", ["x"], ["y"])
    outer = helper.make_node("Inner", ["x"], ["y"], domain=OWN)
    graph = helper.make_graph(
        calls,
        "leaky",
        [helper.make_tensor_value_info("a", TensorProto.FLOAT, [2, 8])],
        [helper.make_tensor_value_info("c", TensorProto.FLOAT, [2, 8])],
    )
    functions = [function("Inner", inner, 0.3), function("Outer", outer, 0.2)]
    return helper.make_model(graph, functions=functions, opset_imports=OPSETS, ir_version=9)


@pytest.mark.parametrize("called", ["Inner", "Outer"])
def test_a_call_takes_the_defaults_of_its_function(called):
    calls = [
        helper.make_node(called, ["a"], ["b"], domain=OWN),
        helper.make_node(called, ["b"], ["c"], domain=OWN, alpha=0.7),
    ]
    model = leaky(calls)
    feeds = {"a": np.random.default_rng(0).standard_normal((2, 8)).astype(np.float32)}
    (wanted,) = run_onnxruntime(model, feeds, 1)
    result = inlined(model)
    assert {node.op_type for node in result.graph.node} == {"LeakyRelu"}
    (actual,) = run_onnxruntime(result, feeds, 1)
    np.testing.assert_allclose(actual, wanted, rtol=1e-6)
    assert model == leaky(calls)

"""Nodes that cannot be verified or bound are refused, with what to do."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from fewtune.binding.bind import bind_shapes
from fewtune.errors import InputError


def model_of(nodes, inputs=(), constants=(), outputs=("y",)):
    graph = helper.make_graph(
        nodes,
        "refused",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 6]), *inputs],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes"),
    [
        ("RandomNormal", [], {"shape": [2, 6]}),
        ("RandomUniformLike", ["x"], {}),
        ("Bernoulli", ["x"], {}),
    ],
)
def test_random_numbers_are_refused_by_node(operator, inputs, attributes):
    nodes = [
        helper.make_node(operator, inputs, ["drawn"], "noise", **attributes),
        helper.make_node("Add", ["x", "drawn"], ["y"], "add"),
    ]
    with pytest.raises(InputError, match=f"{operator} node 'noise' draws random numbers"):
        bind_shapes(model_of(nodes), {}, {})


def test_random_numbers_that_no_output_reads_are_allowed():
    nodes = [
        helper.make_node("RandomNormal", [], ["drawn"], "noise", shape=[2, 6]),
        helper.make_node("Relu", ["x"], ["y"], "relu"),
    ]
    assert bind_shapes(model_of(nodes), {}, {}).graph.output[0].name == "y"


def test_texts_inside_a_model_are_refused_by_node():
    nodes = [
        helper.make_node("Cast", ["x"], ["words"], "to texts", to=TensorProto.STRING),
        helper.make_node("Cast", ["words"], ["y"], "back", to=TensorProto.FLOAT),
    ]
    with pytest.raises(InputError, match="Cast node 'to texts' writes texts"):
        bind_shapes(model_of(nodes), {}, {})


def test_an_input_that_decides_a_shape_must_be_bound():
    sizes = helper.make_tensor_value_info("sizes", TensorProto.INT64, [2])
    nodes = [helper.make_node("Reshape", ["x", "sizes"], ["y"], "shaped")]
    with pytest.raises(InputError, match=r"Reshape node 'shaped' .*--constant sizes=\[1,2\]"):
        bind_shapes(model_of(nodes, [sizes]), {}, {})
    bound = bind_shapes(model_of(nodes, [sizes]), {}, {}, {"sizes": [3, 4]})
    assert [d.dim_value for d in bound.graph.output[0].type.tensor_type.shape.dim] == [3, 4]


@pytest.mark.parametrize("shape", [[], [1]])
def test_a_size_of_one_number_is_bound_by_a_number(shape: list[int]):
    count = helper.make_tensor_value_info("count", TensorProto.INT64, shape)
    nodes = [helper.make_node("TopK", ["x", "count"], ["y", "places"], "largest")]
    with pytest.raises(InputError, match=r"TopK node 'largest' .*--constant count=8"):
        bind_shapes(model_of(nodes, [count]), {}, {})

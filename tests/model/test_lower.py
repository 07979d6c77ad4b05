"""What an import refuses before TVM builds anything."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from fewtune.errors import last_line
from fewtune.model.lower import lower
from fewtune.model.unsupported import UnsupportedError, unsupported_nodes
from fewtune.onnx_graph.bind import bind_shapes
from fewtune.onnx_graph.simplify import simplify
from fewtune.runtime.target import resolve_target


@pytest.mark.parametrize("operator", ["NonZero", "Unique"])
def test_an_operator_that_sizes_its_output_by_values_is_named(operator):
    nodes = [
        helper.make_node("Greater", ["x", "zero"], ["above"]),
        helper.make_node("Cast", ["above"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node(operator, ["mask"], ["chosen"], "choosing"),
        helper.make_node("Cast", ["chosen"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMax", ["numbers"], ["y"], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "sized",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [])],
        [numpy_helper.from_array(np.float32(0.5), "zero")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    bound = simplify(bind_shapes(model, {}, {}))
    with pytest.raises(UnsupportedError, match=f"{operator} .node 'choosing': the size") as refused:
        lower(bound, resolve_target("auto", 1), "NCHW")
    assert [node.operator for node in refused.value.unsupported] == [operator]


def test_a_slice_by_the_values_of_an_input_is_refused_with_a_reason():
    nodes = [
        helper.make_node("ArgMax", ["x"], ["place"], axis=0),
        helper.make_node("Add", ["place", "one"], ["behind"]),
        helper.make_node("Slice", ["x", "place", "behind"], ["y"], "slicing"),
    ]
    graph = helper.make_graph(
        nodes,
        "sliced",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
        [numpy_helper.from_array(np.array([1]), "one")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    bound = simplify(bind_shapes(model, {}, {}))
    target = resolve_target("auto", 1)
    (node,) = unsupported_nodes(bound, lambda each: lower(each, target, "NCHW"), last_line)
    assert (node.node, node.operator) == ("slicing", "Slice")
    assert node.reason.startswith("the values that it reads choose")


def test_an_unknown_operator_is_named():
    node = helper.make_node("Melt", ["x"], ["y"], "melting", domain="other")
    graph = helper.make_graph(
        [node],
        "unknown",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [8])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(UnsupportedError, match="other.Melt .node 'melting': TVM's importer does"):
        lower(model, resolve_target("auto", 1), "NCHW")

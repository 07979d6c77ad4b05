"""Rare forms of a graph become canonical, with the same outputs."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from fewtune.binding.bind import bind_shapes
from fewtune.onnx_graph.graph import static_shape
from fewtune.verify.session import run_onnxruntime

DATA = {"x": np.arange(8, dtype=np.float32).reshape(2, 4)}


def model_of(nodes, outputs=("y",), constants=(), sparse=()):
    graph = helper.make_graph(
        nodes,
        "rare",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants],
        sparse_initializer=sparse,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def sparse_weight(name):
    values = numpy_helper.from_array(np.array([1.5, -2, 3], np.float32), name)
    places = numpy_helper.from_array(np.array([1, 7, 20]), "places")
    return helper.make_sparse_tensor(values, places, [4, 6])


def test_sparse_weights_become_dense():
    product = helper.make_node("MatMul", ["x", "w"], ["y"], "product")
    constant = helper.make_node("Constant", [], ["w"], "w", sparse_value=sparse_weight("v"))
    expected = np.zeros((4, 6), np.float32)
    expected.reshape(-1)[[1, 7, 20]] = [1.5, -2, 3]
    for model in (
        model_of([product], sparse=[sparse_weight("w")]),
        model_of([constant, product]),
    ):
        bound = bind_shapes(model, {}, {})
        assert not bound.graph.sparse_initializer
        np.testing.assert_array_equal(run_onnxruntime(bound, DATA, 1)[0], DATA["x"] @ expected)


def test_nodes_of_one_name_get_different_names():
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "same"),
        helper.make_node("Neg", ["a"], ["b"], "same"),
        helper.make_node("Exp", ["b"], ["y"], "same_2"),
    ]
    bound = bind_shapes(model_of(nodes), {}, {})
    assert len({node.name for node in bound.graph.node}) == 3
    np.testing.assert_allclose(run_onnxruntime(bound, DATA, 1)[0], np.exp(-DATA["x"]))


def test_a_constant_output_is_written_by_a_node():
    nodes = [helper.make_node("Add", ["x", "w"], ["y"], "add")]
    weight = np.arange(4, dtype=np.float32)
    bound = bind_shapes(model_of(nodes, ["y", "w"], [("w", weight)]), {}, {})
    sums, given = run_onnxruntime(bound, DATA, 1)
    np.testing.assert_array_equal(sums, DATA["x"] + weight)
    np.testing.assert_array_equal(given, weight)


def test_an_unsorted_topk_is_sorted():
    nodes = [helper.make_node("TopK", ["x", "k"], ["y", "places"], "top", sorted=0)]
    bound = bind_shapes(model_of(nodes, constants=[("k", np.array([2]))]), {}, {})
    np.testing.assert_array_equal(run_onnxruntime(bound, DATA, 1)[0], [[3, 2], [7, 6]])


def test_the_default_domain_has_one_spelling():
    node = helper.make_node("Neg", ["x"], ["y"], "negated", domain="ai.onnx")
    bound = bind_shapes(model_of([node]), {}, {})
    assert {node.domain for node in bound.graph.node} == {""}
    np.testing.assert_array_equal(run_onnxruntime(bound, DATA, 1)[0], -DATA["x"])


def test_empty_inputs_at_the_end_are_removed():
    # onnxruntime's optimiser does not expect empty inputs.
    nodes = [
        helper.make_node("LayerNormalization", ["x", "scale", ""], ["n"], "normal"),
        helper.make_node("Clip", ["n", "", ""], ["c"], "bounded"),
        helper.make_node("Mul", ["c", "scale"], ["y"], "scaled"),
    ]
    bound = bind_shapes(model_of(nodes, constants=[("scale", np.ones(4, np.float32))]), {}, {})
    assert [len(node.input) for node in bound.graph.node] == [2, 1, 2]
    run_onnxruntime(bound, DATA, 1)


def test_a_short_transform_has_the_shape_that_onnxruntime_gives_it():
    node = helper.make_node("STFT", ["signal", "step", "", "frame"], ["y"])
    turned = helper.make_node("Unsqueeze", ["x", "last"], ["signal"])
    constants = [("step", np.array(1)), ("frame", np.array(4)), ("last", np.array([2]))]
    bound = bind_shapes(model_of([turned, node], constants=constants), {}, {})
    (output,) = run_onnxruntime(bound, DATA, 1)
    assert static_shape(bound.graph.output[0]) == list(output.shape)

"""ScatterND by rows, and the sums of messages that graph networks write as ScatterElements."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from fewtune.onnx_graph.bind import bind_shapes
from fewtune.onnx_graph.session import OnnxruntimeSession
from fewtune.onnx_graph.simplify import simplify
from tests.expanded_models import node_model
from tests.made.compiled import lowered, outputs
from tests.made.outputs import run_onnxruntime

GENERATOR = np.random.default_rng(5)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "min", "max"])
@pytest.mark.parametrize("columns", [(64,), (3, 7), ()])
def test_rows_are_combined_as_onnxruntime_does(reduction, columns):
    # What replaces an element twice is not defined.
    rows = [3, 0, 5] if reduction == "none" else [3, 0, 5, 3, -1, 3]
    arrays = {
        "data": GENERATOR.standard_normal((6, *columns)).astype("float32"),
        "indices": np.array(rows)[:, None],
        "updates": GENERATOR.standard_normal((len(rows), *columns)).astype("float32"),
    }
    node = helper.make_node("ScatterND", list(arrays), ["y"], reduction=reduction)
    model, feeds = node_model(node, arrays, opset=18)
    ((made,),) = outputs(model, list(feeds.values()))
    (expected,) = run_onnxruntime(model, feeds, 1)
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-6)


def messages(expanded, kind=TensorProto.INT64, edges=40):
    """Sums of an edge's features at its node; the edge's index is expanded from this shape."""
    nodes = [
        helper.make_node("Reshape", ["edge", "column"], ["index"]),
        helper.make_node("Expand", ["index", "shape"], ["indices"]),
        helper.make_node("ScatterElements", ["data", "indices", "x"], ["y"], reduction="add"),
    ]
    constants = {
        "column": np.array(expanded),
        "shape": np.array([edges, 32]),
        "data": np.zeros((9, 32), np.float32),
    }
    graph = helper.make_graph(
        nodes,
        "messages",
        [
            helper.make_tensor_value_info("edge", kind, [max(expanded)]),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [edges, 32]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [9, 32])],
        [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


@pytest.mark.parametrize("kind", ["int32", "int64"])
@pytest.mark.parametrize("expanded", [[40, 1], [1, 32]], ids=["rows", "columns"])
def test_messages_are_added_by_rows(expanded, kind):
    model = messages(expanded, helper.np_dtype_to_tensor_dtype(np.dtype(kind)))
    feeds = {
        "edge": GENERATOR.integers(-9, 9, max(expanded)).astype(kind),
        "x": GENERATOR.standard_normal((40, 32)).astype("float32"),
    }
    (expected,) = run_onnxruntime(model, feeds, 1)
    ((made,),) = outputs(model, list(feeds.values()))
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-5)
    # The simplified model is a reference, too.
    (again,) = run_onnxruntime(simplify(bind_shapes(model, {}, {})), feeds, 1)
    np.testing.assert_allclose(again, expected, rtol=1e-5, atol=1e-5)
    kernels = " ".join(each.name_hint for each in lowered(model).functions)
    assert ("scatter_nd" in kernels) == (expanded == [40, 1])


def test_the_reference_loses_no_sum_of_equal_rows():
    # With two threads, onnxruntime 1.31 loses some in most of these runs.
    rows, columns = 4_000, 1_024
    arrays = {
        "data": np.zeros((3, columns), np.float32),
        "indices": np.arange(rows)[:, None] % 3,
        "updates": np.ones((rows, columns), np.float32),
    }
    node = helper.make_node("ScatterND", list(arrays), ["y"], reduction="add")
    model, feeds = node_model(node, arrays)
    session = OnnxruntimeSession(model, 2)
    counts = np.bincount(arrays["indices"][:, 0])
    for _ in range(20):
        np.testing.assert_array_equal(session.run(feeds)[0], np.repeat(counts[:, None], columns, 1))

"""Drawn inputs are within the range that their use allows."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from fewtune.onnx_graph.simplify import with_shapes
from fewtune.verify.draws import LIMITS, drawn_inputs, rare_inputs
from fewtune.verify.indices import index_limits
from fewtune.verify.session import tensor_specs
from tests import tiny_models
from tests.verify import small_models


def test_integers_are_below_the_rows_of_their_table():
    model = small_models.embedding()
    assert index_limits(model) == {"ids": (-50, 49)}
    first, second, *_ = drawn_inputs(model, tensor_specs(model)[0], 0)
    for draw in (first, second):
        assert 1 < draw.feeds["ids"].max() < 50
    assert set(np.unique(first.feeds["mask"])) == {0, 1}
    assert (second.feeds["mask"] == 1).all()


def test_indices_are_below_the_axes_that_they_read_and_write():
    # A graph network: edges between rows, and rows that are summed for each graph.
    nodes = [
        helper.make_node("Gather", ["edges", "first"], ["sources"], axis=0),
        helper.make_node("Gather", ["x", "sources"], ["messages"]),
        helper.make_node("Unsqueeze", ["graphs", "last"], ["column"]),
        helper.make_node("Expand", ["column", "shape"], ["places"]),
        helper.make_node("ScatterElements", ["sums", "places", "x"], ["pooled"], reduction="add"),
        helper.make_node("Unsqueeze", ["tuples", "last"], ["one_each"]),
        helper.make_node("Where", ["is_low", "one_each", "one_each"], ["chosen"]),
        helper.make_node("GatherND", ["pooled", "chosen"], ["read"]),
    ]
    graph = helper.make_graph(
        nodes,
        "graph",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [9, 4]),
            helper.make_tensor_value_info("edges", TensorProto.INT64, [2, 20]),
            helper.make_tensor_value_info("graphs", TensorProto.INT64, [9]),
            helper.make_tensor_value_info("tuples", TensorProto.INT64, [5]),
        ],
        [
            helper.make_tensor_value_info("messages", TensorProto.FLOAT, [20, 4]),
            helper.make_tensor_value_info("read", TensorProto.FLOAT, [5, 4]),
        ],
        [
            numpy_helper.from_array(np.array(0), "first"),
            numpy_helper.from_array(np.array([-1]), "last"),
            numpy_helper.from_array(np.array([9, 4]), "shape"),
            numpy_helper.from_array(np.zeros((3, 4), np.float32), "sums"),
            numpy_helper.from_array(np.array([[True]]), "is_low"),
        ],
    )
    opsets = [helper.make_opsetid("", 18)]
    model = with_shapes(helper.make_model(graph, opset_imports=opsets, ir_version=8))
    limits = {"edges": (-9, 8), "graphs": (-3, 2), "tuples": (-3, 2)}
    assert index_limits(model, is_certain=False) == limits
    # Where may choose other values than those of the input.
    del limits["tuples"]
    assert index_limits(model) == limits


def test_constants_that_are_added_move_the_limits_of_an_index():
    nodes = [
        helper.make_node("Add", ["places", "offsets"], ["rows"]),
        helper.make_node("Gather", ["table", "rows"], ["read"]),
        helper.make_node("Sub", ["one", "places"], ["mirrored"]),
        helper.make_node("Gather", ["table", "mirrored"], ["not_followed"]),
        helper.make_node("GatherElements", ["short", "places"], ["as_well"]),
    ]
    arrays = {
        "offsets": np.array([2, 0, 3, 0]),
        "one": np.int64(1),
        "table": np.zeros((10, 2), np.float32),
        "short": np.zeros(6, np.float32),
    }
    outputs = {"read": [4, 2], "not_followed": [4, 2], "as_well": [4]}
    graph = helper.make_graph(
        nodes,
        "places",
        [helper.make_tensor_value_info("places", TensorProto.INT64, [4])],
        [
            helper.make_tensor_value_info(n, TensorProto.FLOAT, shape)
            for n, shape in outputs.items()
        ],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert index_limits(model) == {"places": (-6, 5)}
    del model.graph.node[-1], model.graph.output[-1]
    assert index_limits(model) == {"places": (-10, 6)}


def test_floats_are_drawn_in_three_ways_and_reproducibly():
    model = tiny_models.tiny_convolutional_model()
    draws = drawn_inputs(model, tensor_specs(model)[0], 3)
    low = [float(draw.feeds["input"].min()) for draw in draws]
    assert low[0] < 0 <= low[1]
    assert low[2] > 0
    assert draws[2].feeds["input"].max() > 1
    for draw, again in zip(draws, drawn_inputs(model, tensor_specs(model)[0], 3), strict=True):
        np.testing.assert_array_equal(draw.feeds["input"], again.feeds["input"])


def test_integers_in_arithmetic_only_reach_further():
    nodes = [
        helper.make_node("Cast", ["step"], ["time"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["time", "x"], ["angles"]),
        helper.make_node("Less", ["places", "length"], ["is_inside"]),
        helper.make_node("Cast", ["mask"], ["ones"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["one", "ones"], ["masked"]),
        helper.make_node("Add", ["word", "offset"], ["row"]),
        helper.make_node("Cast", ["bit"], ["is_set"], to=TensorProto.BOOL),
        helper.make_node("Where", ["is_set", "angles", "x"], ["y"]),
    ]
    integers = ("step", "length", "mask", "word", "bit")
    graph = helper.make_graph(
        nodes,
        "numbers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [40])]
        + [helper.make_tensor_value_info(name, TensorProto.INT64, [40]) for name in integers],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [40]),
            helper.make_tensor_value_info("is_inside", TensorProto.BOOL, [40]),
            helper.make_tensor_value_info("masked", TensorProto.FLOAT, [40]),
            helper.make_tensor_value_info("row", TensorProto.INT64, [40]),
        ],
        [
            numpy_helper.from_array(np.arange(40), "places"),
            numpy_helper.from_array(np.float32(1), "one"),
            numpy_helper.from_array(np.int64(10), "offset"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    *_, third = drawn_inputs(model, tensor_specs(model)[0], 0)
    for name in integers:
        is_wide = name in ("step", "length")
        assert (third.feeds[name].max() > 9) == is_wide
        assert third.feeds[name].min() >= 0


def test_rare_inputs_are_at_limits_far_from_zero_huge_and_infinite():
    model = small_models.embedding()
    specs = tensor_specs(model)[0]
    (limits,) = rare_inputs(model, specs, drawn_inputs(model, specs, 0)[0])
    assert limits.name == LIMITS
    assert set(np.unique(limits.feeds["ids"])) == {-50, 49}
    model = tiny_models.tiny_convolutional_model()
    specs = tensor_specs(model)[0]
    far, huge, infinite = rare_inputs(model, specs, drawn_inputs(model, specs, 0)[0])
    assert far.feeds["input"].min() > 200
    assert np.count_nonzero(huge.feeds["input"] == 1e6) == 1
    assert np.count_nonzero(np.isinf(infinite.feeds["input"])) == 1

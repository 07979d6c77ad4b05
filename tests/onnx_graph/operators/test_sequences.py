"""Sequences of static length, compared with onnxruntime."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from fewtune.errors import InputError
from tests.expanded_models import assert_same, expanded
from tests.tiny_models import make_model

DATA = {"x": np.arange(12, dtype=np.float32).reshape(3, 4)}


def model_of(nodes, constants=(), opset=17):
    return make_model(nodes, {"x": [3, 4]}, {"y": None}, dict(constants), opset)


SPLIT = helper.make_node("SplitToSequence", ["x"], ["parts"], "split", axis=0, keepdims=0)
JOIN = helper.make_node("ConcatFromSequence", ["parts"], ["y"], "join", axis=1, new_axis=1)


def test_a_tensor_is_split_and_its_parts_joined_along_a_new_axis():
    assert_same(model_of([SPLIT, JOIN]), DATA)


def test_parts_are_inserted_erased_and_read_at_constant_positions():
    nodes = [
        helper.make_node("SplitToSequence", ["x", "size"], ["s"], "split", axis=1),
        helper.make_node("SequenceAt", ["s", "last"], ["part"], "at"),
        helper.make_node("SequenceInsert", ["s", "part", "first"], ["longer"], "insert"),
        helper.make_node("SequenceErase", ["longer"], ["parts"], "erase"),
        helper.make_node("ConcatFromSequence", ["parts"], ["y"], "join", axis=1),
    ]
    places = [("size", np.int64(2)), ("last", np.int64(-1)), ("first", np.int64(0))]
    assert_same(model_of(nodes, places), DATA)


def test_a_loop_that_appends_to_a_sequence_is_unrolled():
    body = helper.make_graph(
        [
            helper.make_node("Gather", ["x", "step"], ["row"]),
            helper.make_node("SequenceInsert", ["before", "row"], ["after"]),
            helper.make_node("Identity", ["going"], ["still"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("step", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_sequence_value_info("before", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("still", TensorProto.BOOL, []),
            helper.make_tensor_sequence_value_info("after", TensorProto.FLOAT, None),
        ],
    )
    nodes = [
        helper.make_node("SequenceEmpty", [], ["none"], "none"),
        helper.make_node("Loop", ["trips", "", "none"], ["parts"], "loop", body=body),
        JOIN,
    ]
    model = model_of(nodes, [("trips", np.int64(3))])
    assert_same(model, DATA)


def test_a_position_beyond_a_sequence_is_refused_by_node():
    read = helper.make_node("SequenceAt", ["parts", "place"], ["y"], "reads beyond")
    with pytest.raises(InputError, match="SequenceAt node 'reads beyond' reads place 7"):
        expanded(model_of([SPLIT, read], [("place", np.int64(7))]))

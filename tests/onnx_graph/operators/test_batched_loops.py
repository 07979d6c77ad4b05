"""Loops whose steps are computed together, compared with onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.expanded_models import assert_same, float_info
from tests.tiny_models import make_model

STEPS, WIDTH = 12, 4
DATA = np.random.default_rng(5).normal(size=(STEPS, WIDTH)).astype(np.float32)


def model_of(node, shape, constants=()):
    return make_model([node], {"x": list(shape)}, {"y": None}, dict(constants), opset=17)


def distances(given, states, **attributes):
    """Squared distances of each row from a matrix' rows, as scikit-learn's converter writes."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["all_in"], ["all_out"]),
            helper.make_node("Sub", ["all_in", "row"], ["apart"]),
            helper.make_node("ReduceSumSquare", ["apart"], ["squares"], axes=[1], keepdims=0),
            helper.make_node("Identity", ["squares"], ["out"]),
        ],
        "body",
        [float_info("all_in", None), float_info("row", None)],
        [float_info("all_out", None), float_info("out", None)],
    )
    return helper.make_node(
        "Scan", [states, given], ["kept", "y"], "scan", body=body, num_scan_inputs=1, **attributes
    )


@pytest.mark.parametrize("states", ["x", "other"])
@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"scan_output_axes": [1]},
        {"scan_input_directions": [1]},
        {"scan_output_directions": [1]},
    ],
)
def test_a_scan_that_changes_no_state_is_a_few_nodes(states, attributes):
    other = ("other", DATA[:5] * 2)
    model = model_of(distances("x", states, **attributes), DATA.shape, [other])
    result = assert_same(model, {"x": DATA})
    assert len(result.graph.node) < STEPS


def test_steps_along_another_axis_are_moved_to_the_front():
    states = ("other", np.ones((3, STEPS), np.float32))
    node = distances("x", "other", scan_input_axes=[1])
    assert len(assert_same(model_of(node, DATA.shape, [states]), {"x": DATA}).graph.node) < STEPS


def test_a_loop_that_gathers_by_its_step_is_a_few_nodes():
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go_in"], ["go"]),
            helper.make_node("Gather", ["x", "step"], ["row"], axis=0),
            helper.make_node("Mul", ["row", "x"], ["products"]),
            helper.make_node("ReduceMax", ["products"], ["out"], keepdims=0),
        ],
        "body",
        [
            helper.make_tensor_value_info("step", TensorProto.INT64, []),
            helper.make_tensor_value_info("go_in", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("go", TensorProto.BOOL, []), float_info("out", [])],
    )
    node = helper.make_node("Loop", ["steps", ""], ["y"], "loop", body=body)
    model = model_of(node, DATA.shape, [("steps", np.array(STEPS))])
    assert len(assert_same(model, {"x": DATA}).graph.node) < STEPS


@pytest.mark.parametrize("operator", ["CumSum", "Softmax"])
def test_a_body_with_unknown_operators_is_unrolled(operator):
    more = ["zero"] if operator == "CumSum" else []
    body = helper.make_graph(
        [helper.make_node(operator, ["row", *more], ["out"], **({} if more else {"axis": 0}))],
        "body",
        [float_info("row", [WIDTH])],
        [float_info("out", [WIDTH])],
    )
    node = helper.make_node("Scan", ["x"], ["y"], "scan", body=body, num_scan_inputs=1)
    constants = [("zero", np.array(0))] if more else []
    result = assert_same(model_of(node, DATA.shape, constants), {"x": DATA})
    assert sum(each.op_type == operator for each in result.graph.node) == STEPS

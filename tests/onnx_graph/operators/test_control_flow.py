import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from fewtune.errors import InputError
from tests.expanded_models import assert_same, expanded, float_info


def model_of(nodes, weights, outputs=("out",), shape=(2, 3), opset=17, inputs=()):
    graph = helper.make_graph(
        nodes,
        "flow",
        [float_info("x", shape), *inputs],
        [float_info(name, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def feeds(shape=(2, 3)):
    return {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}


def loop_body(nodes, carried, scans=(), initializers=()):
    inputs = [
        helper.make_tensor_value_info("step", TensorProto.INT64, []),
        helper.make_tensor_value_info("going", TensorProto.BOOL, []),
        *(float_info(name, None) for name, _ in carried),
    ]
    outputs = [helper.make_tensor_value_info("still", TensorProto.BOOL, [])]
    outputs += [float_info(name, None) for name in [*(new for _, new in carried), *scans]]
    return helper.make_graph(nodes, "body", inputs, outputs, list(initializers))


def counting_loop(trips="trips", condition="true"):
    """A state that is doubled, plus the step; all states are stacked in an output."""
    body = loop_body(
        [
            helper.make_node("Cast", ["step"], ["number"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["state", "two"], ["doubled"]),
            helper.make_node("Add", ["doubled", "number"], ["sum"]),
            helper.make_node("Add", ["sum", "x"], ["next"]),
            helper.make_node("Tanh", ["next"], ["shown"]),
            helper.make_node("Less", ["step", "limit"], ["still"]),
        ],
        [("state", "next")],
        ["shown"],
        [numpy_helper.from_array(np.array(2, np.float32), "two")],
    )
    return helper.make_node("Loop", [trips, condition, "x"], ["out", "all"], "loop", body=body)


@pytest.mark.parametrize(("trips", "limit"), [(5, 99), (40, 3), (3, 1)])
def test_loop_ends_by_its_count_or_its_condition(trips, limit):
    weights = {"trips": np.int64(trips), "true": np.array(True), "limit": np.int64(limit)}
    assert_same(model_of([counting_loop()], weights, ["out", "all"]), feeds())


def test_trip_count_of_a_shape_is_a_constant():
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "one"], ["trips"], axis=0),
        counting_loop(),
    ]
    weights = {"one": np.int64(1), "true": np.array(True), "limit": np.int64(9)}
    assert_same(model_of(nodes, weights, ["out", "all"]), feeds())


def test_steps_of_a_loop_share_one_gather():
    body = loop_body(
        [
            helper.make_node("Gather", ["x", "step"], ["row"], axis=0),
            helper.make_node("Add", ["state", "row"], ["next"]),
            helper.make_node("Identity", ["going"], ["still"]),
        ],
        [("state", "next")],
    )
    node = helper.make_node("Loop", ["trips", "", "zero"], ["out"], "loop", body=body)
    weights = {"trips": np.int64(4), "zero": np.zeros(3, np.float32)}
    model = model_of([node], weights, shape=(4, 3))
    result = assert_same(model, feeds((4, 3)))
    taken = [node for node in result.graph.node if node.op_type == "Gather"]
    sizes = {tensor.name: list(tensor.dims) for tensor in result.graph.initializer}
    assert [sizes[node.input[1]] for node in taken] == [[1, 1]] * 4


def test_nested_loops_and_branches():
    inner = loop_body(
        [
            helper.make_node("Mul", ["inner_state", "factor"], ["inner_next"]),
            helper.make_node("Identity", ["going"], ["still"]),
        ],
        [("inner_state", "inner_next")],
    )
    inner.input[0].name, inner.input[1].name = "inner_step", "inner_going"
    inner.node[1].input[0] = "inner_going"
    inner.node[1].output[0] = inner.output[0].name = "inner_still"
    then = helper.make_graph(
        [helper.make_node("Tanh", ["scaled"], ["then"])], "then", [], [float_info("then", None)]
    )
    other = helper.make_graph(
        [helper.make_node("Neg", ["scaled"], ["other"])], "other", [], [float_info("other", None)]
    )
    body = loop_body(
        [
            helper.make_node("Loop", ["inner_trips", "", "state"], ["scaled"], "inner", body=inner),
            helper.make_node("Equal", ["step", "first"], ["is_first"]),
            helper.make_node(
                "If", ["is_first"], ["next"], "branch", then_branch=then, else_branch=other
            ),
            helper.make_node("Identity", ["going"], ["still"]),
        ],
        [("state", "next")],
    )
    node = helper.make_node("Loop", ["trips", "true", "x"], ["out"], "outer", body=body)
    weights = {
        "trips": np.int64(3),
        "inner_trips": np.int64(2),
        "true": np.array(True),
        "first": np.int64(0),
        "factor": np.float32(1.5),
    }
    assert_same(model_of([node], weights), feeds())


def branches(first="Tanh", second="Neg"):
    graphs = [
        helper.make_graph(
            [helper.make_node(operator, ["x"], [name])], name, [], [float_info(name, None)]
        )
        for name, operator in (("then", first), ("other", second))
    ]
    return helper.make_node(
        "If", ["condition"], ["out"], "branch", then_branch=graphs[0], else_branch=graphs[1]
    )


@pytest.mark.parametrize("condition", [True, False])
def test_constant_condition(condition):
    result = assert_same(model_of([branches()], {"condition": np.array(condition)}), feeds())
    assert ("Tanh" in {node.op_type for node in result.graph.node}) == condition


@pytest.mark.parametrize("condition", [True, False])
def test_open_condition_computes_both(condition):
    value = helper.make_tensor_value_info("condition", TensorProto.BOOL, [])
    model = model_of([branches()], {}, inputs=[value])
    assert_same(model, {**feeds(), "condition": np.array(condition)})


def test_open_condition_and_different_shapes_are_refused():
    value = helper.make_tensor_value_info("condition", TensorProto.BOOL, [])
    with pytest.raises(InputError, match=r"If node 'branch' has a condition that depends"):
        expanded(model_of([branches("Tanh", "Shape")], {}, inputs=[value]))


def test_open_trip_count_is_refused():
    value = helper.make_tensor_value_info("trips", TensorProto.INT64, [])
    weights = {"true": np.array(True), "limit": np.int64(9)}
    model = model_of([counting_loop()], weights, ["out", "all"], inputs=[value])
    with pytest.raises(InputError, match=r"Loop node 'loop' has a trip count that depends"):
        expanded(model)


@pytest.mark.slow
def test_endless_loop_is_refused():
    model = model_of(
        [counting_loop(trips="")],
        {"true": np.array(True), "limit": np.int64(10**9)},
        ["out", "all"],
    )
    with pytest.raises(InputError, match="runs for more than"):
        expanded(model)


def scan_body():
    return helper.make_graph(
        [
            helper.make_node("Add", ["state", "row"], ["next"]),
            helper.make_node("Mul", ["next", "column"], ["shown"]),
        ],
        "body",
        [float_info(name, None) for name in ("state", "row", "column")],
        [float_info(name, None) for name in ("next", "shown")],
    )


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"scan_input_directions": [0, 1]},
        {"scan_output_directions": [1]},
        {"scan_output_axes": [1]},
        {"scan_output_axes": [-1]},
        {"scan_input_axes": [1, 0]},
    ],
)
def test_scan(given):
    node = helper.make_node(
        "Scan", ["zero", "x", "x"], ["out", "all"], "scan", body=scan_body(), num_scan_inputs=2,
        **given,
    )  # fmt: skip
    model = model_of([node], {"zero": np.zeros(4, np.float32)}, ["out", "all"], (4, 4))
    assert_same(model, feeds((4, 4)))

"""Branches of constant conditions: inlined while a model is bound."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from fewtune.binding.bind import bind_shapes
from fewtune.onnx_graph.graph import all_nodes
from fewtune.onnx_graph.observed_shapes import run_onnxruntime_once


def branching_model() -> onnx.ModelProto:
    """One of two scales, by a sampling rate; the first branch squeezes if there is one row."""

    def scaled(by: float, squeezes: bool) -> onnx.GraphProto:
        scale = numpy_helper.from_array(np.float32(by), f"scale_{by}")
        nodes = [helper.make_node("Mul", ["x", scale.name], [f"scaled_{by}"])]
        result = f"scaled_{by}"
        if squeezes:
            condition = [
                helper.make_node("Shape", [result], ["size"], start=0, end=1),
                helper.make_node("Squeeze", ["size"], ["rows"]),
                helper.make_node("Equal", ["rows", "one"], ["is_one"]),
            ]
            inner = [
                helper.make_graph(
                    [helper.make_node(kind, [result], [f"inner_{kind}"])],
                    kind,
                    [],
                    [helper.make_tensor_value_info(f"inner_{kind}", TensorProto.FLOAT, None)],
                )
                for kind in ("Squeeze", "Identity")
            ]
            choice = helper.make_node(
                "If", ["is_one"], ["chosen"], then_branch=inner[0], else_branch=inner[1]
            )
            nodes, result = [*nodes, *condition, choice], "chosen"
        output = helper.make_tensor_value_info(result, TensorProto.FLOAT, None)
        one = numpy_helper.from_array(np.int64(1), "one")
        return helper.make_graph(nodes, f"by_{by}", [], [output], [scale, one])

    graph = helper.make_graph(
        [
            helper.make_node("Equal", ["rate", "high"], ["is_high"]),
            helper.make_node(
                "If",
                ["is_high"],
                ["y"],
                then_branch=scaled(2.0, True),
                else_branch=scaled(3.0, False),
            ),
        ],
        "rates",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 4]),
            helper.make_tensor_value_info("rate", TensorProto.INT64, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.int64(16000), "high")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_branches_of_a_bound_input_are_inlined() -> None:
    model, x = branching_model(), np.arange(4, dtype=np.float32)[None]
    bound = bind_shapes(model, {"x": [1, 4]}, {}, {"rate": 16000})
    assert not any(node.op_type == "If" for node in all_nodes(bound.graph))
    given = run_onnxruntime_once(model, [{"x": x, "rate": np.array(16000)}])
    settled = run_onnxruntime_once(bound, [{"x": x}])
    np.testing.assert_array_equal(settled[0][0], given[0][0])
    assert settled[0][0].shape == (4,)


def test_a_branch_that_depends_on_an_input_stays() -> None:
    bound = bind_shapes(branching_model(), {"x": [2, 4]}, {})
    assert [node.op_type for node in bound.graph.node].count("If") == 1

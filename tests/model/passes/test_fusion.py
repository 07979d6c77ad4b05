"""The limit of work in a fused kernel."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fewtune.model.lower import lower
from fewtune.onnx_graph.bind import bind_shapes
from fewtune.onnx_graph.simplify import simplify, with_layers
from fewtune.runtime.executable import CompiledModel, build_executable
from fewtune.runtime.target import resolve_target
from fewtune.task.analysis import call_counts
from fewtune.verify.session import run_onnxruntime

TARGET = resolve_target("auto", 1)


def chain(operators: list[str]) -> onnx.ModelProto:
    """Operators one behind the other; those of two inputs read the value before twice."""
    nodes, last = [], "x"
    for place, operator in enumerate(operators):
        given = [last, last] if operator in ("Mul", "Add") else [last]
        nodes.append(helper.make_node(operator, given, [f"v{place}"]))
        last = f"v{place}"
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 8]) for n in ("x", last)]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    return bind_shapes(model, {}, {})


@pytest.mark.parametrize(
    ("operators", "kernels"),
    [
        (["Softplus", "Tanh", "Relu"], 1),
        (["Sigmoid"] * 12, 12 // 4),
        (["Mul"] * 32, 32 // 16),
        (["Abs", "Neg"] * 60, 120 // 16 + 1),
    ],
    ids=["mish", "nested functions", "doubled", "long"],
)
def test_kernels_stay_within_the_limit(operators: list[str], kernels: int) -> None:
    bound = chain(operators)
    lowered = lower(simplify(bound), TARGET, "NCHW")
    assert sum(call_counts(lowered).values()) == kernels
    feeds = {"x": np.linspace(0.5, 1, 32, dtype=np.float32).reshape(4, 8)}
    (wanted,) = run_onnxruntime(bound, feeds, 1)
    (made,) = CompiledModel(build_executable(lowered, TARGET), TARGET).outputs(list(feeds.values()))
    np.testing.assert_allclose(made, wanted, rtol=1e-4)


def behind_layer(operators: list[str]) -> onnx.ModelProto:
    """Operators behind a recurrent layer, whose own kernel is above the limit."""
    random = np.random.default_rng(0)
    model = chain(operators)
    weights = {"w": (1, 24, 8), "r": (1, 24, 8)}
    for name, shape in weights.items():
        array = random.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    model.graph.node[0].input[0] = "states"
    layer = helper.make_node(
        "GRU", ["x", "w", "r"], ["states"], hidden_size=8, linear_before_reset=1
    )
    model.graph.node.insert(0, layer)
    ends = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 1, 8])]
    ends.append(helper.make_tensor_value_info(f"v{len(operators) - 1}", TensorProto.FLOAT, None))
    del model.graph.input[:], model.graph.output[:], model.graph.value_info[:]
    model.graph.input.append(ends[0])
    model.graph.output.append(ends[1])
    return bind_shapes(model, {}, {})


def test_a_recurrent_layer_hinders_no_fusion_elsewhere():
    counts = [
        sum(call_counts(lower(with_layers(behind_layer(each)), TARGET, "NCHW")).values())
        for each in (["Abs"], ["Abs", "Neg", "Abs", "Neg"])
    ]
    assert counts[0] == counts[1]


def test_one_large_kernel_leaves_the_others_whole():
    model = chain([*["Abs", "Neg"] * 10, "Softmax", *["Sigmoid"] * 12])
    counts = call_counts(lower(simplify(model), TARGET, "NCHW"))
    assert sum(count for kernel, count in counts.items() if "abs" in kernel) == 1

"""The limit of work in a fused kernel."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from fewtune.model.lower import lower
from fewtune.onnx_graph.bind import bind_shapes
from fewtune.onnx_graph.simplify import simplify
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

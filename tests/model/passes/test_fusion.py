"""The limit of work in a fused kernel."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from fewtune.model.lower import lower
from fewtune.onnx_graph.bind import bind_shapes
from fewtune.onnx_graph.external_data import light
from fewtune.onnx_graph.simplify import simplify, with_light_layers
from fewtune.runtime.target import resolve_target
from fewtune.task.analysis import call_counts
from tests.made.compiled import error_of, lowered
from tests.made.onnx_text import model_of

TARGET = resolve_target("auto", 1)


def chain(
    operators: list[str],
    before: str = "",
    first: str = "x",
    shape: str = "4,8",
    **weights: np.ndarray,
) -> onnx.ModelProto:
    """Operators one behind the other; those of two inputs read the value before twice."""
    nodes, last = before, first
    for place, operator in enumerate(operators):
        given = f"{last}, {last}" if operator in ("Mul", "Add") else last
        nodes += f" v{place} = {operator} ({given})"
        last = f"v{place}"
    text = f"(float[{shape}] x) => (float[] {last}) {{{nodes}}}"
    return bind_shapes(model_of(text, 13, **weights), {}, {})


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
    module = lowered(bound)
    assert sum(call_counts(module).values()) == kernels
    assert error_of(bound, module) < 1e-4


def behind_layer(operators: list[str]) -> onnx.ModelProto:
    """Operators behind a recurrent layer, whose own kernel is above the limit."""
    random = np.random.default_rng(0)
    weights = {name: random.standard_normal((1, 24, 8)).astype(np.float32) for name in "wr"}
    gru = "states = GRU <hidden_size = 8, linear_before_reset = 1> (x, w, r)"
    return chain(operators, gru, "states", "4,1,8", **weights)


def test_a_recurrent_layer_hinders_no_fusion_elsewhere():
    counts = [
        sum(
            call_counts(
                lower(with_light_layers(light(behind_layer(each))), TARGET, "NCHW")
            ).values()
        )
        for each in (["Abs"], ["Abs", "Neg", "Abs", "Neg"])
    ]
    assert counts[0] == counts[1]


def test_one_large_kernel_leaves_the_others_whole():
    model = chain([*["Abs", "Neg"] * 10, "Softmax", *["Sigmoid"] * 12])
    counts = call_counts(lower(simplify(model), TARGET, "NCHW"))
    assert sum(count for kernel, count in counts.items() if "abs" in kernel) == 1

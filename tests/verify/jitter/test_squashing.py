"""Differences of an exponential and one: near zero they may be rounded as one is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import TensorProto, helper

from fewtune.verify.draws import Draw
from fewtune.verify.make_reference import make_reference
from fewtune.verify.reference import Reference
from fewtune.verify.session import tensor_specs

ROWS, WIDTH = 64, 16
Function = Callable[[np.ndarray], np.ndarray]


def below_zero() -> np.ndarray:
    """Numbers of every magnitude."""
    return -(10 ** np.random.default_rng(0).uniform(-6, 0, (ROWS, WIDTH)))


def confident() -> np.ndarray:
    """Logits of which one is much larger than the others."""
    logits = np.random.default_rng(1).standard_normal((ROWS, WIDTH))
    logits[:, 3] += np.linspace(6, 14, ROWS)
    return logits


def elu(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x, np.expm1(x))


def selu(x: np.ndarray) -> np.ndarray:
    alpha, gamma = (float(np.float32(each)) for each in (1.6732632, 1.0507009))
    return gamma * np.where(x > 0, x, alpha * np.expm1(x))


def log_softmax(x: np.ndarray) -> np.ndarray:
    apart = x - x.max(axis=1, keepdims=True)
    others = np.exp(apart).sum(axis=1, keepdims=True) - 1
    return apart - np.log1p(others)


CASES: dict[str, tuple[Callable[[], np.ndarray], Function]] = {
    "Elu": (below_zero, elu),
    "Selu": (below_zero, selu),
    "LogSoftmax": (confident, log_softmax),
}


def reference_of(operator: str, data: np.ndarray) -> Reference:
    shape = [ROWS, WIDTH]
    graph = helper.make_graph(
        [helper.make_node(operator, ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    _, outputs = tensor_specs(model)
    return make_reference(model, model, outputs, [Draw("some", {"x": data})], 1, 0)


@pytest.mark.parametrize("operator", CASES)
def test_exact_results_pass(operator: str) -> None:
    draw, exact = CASES[operator]
    reference = reference_of(operator, draw().astype(np.float32))
    found = reference.check(lambda feeds: [exact(feeds["x"].astype("f8")).astype("f4")])
    assert found.allowances <= 1, found.text


@pytest.mark.parametrize("operator", CASES)
def test_a_column_wrong_by_a_thousandth_fails(operator: str) -> None:
    draw, exact = CASES[operator]

    def wrong(feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        found = exact(feeds["x"].astype("f8"))
        found[:, 5] *= 1.001
        return [found.astype("f4")]

    reference = reference_of(operator, draw().astype(np.float32))
    assert reference.check(wrong).allowances > 1

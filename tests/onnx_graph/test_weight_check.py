"""Weights that are no numbers."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from fewtune.errors import InputError
from fewtune.onnx_graph.weight_check import check_finite
from tests.tiny_models import make_model


def with_constant(operator: str, *inputs: str):
    node = helper.make_node(operator, list(inputs), ["output"], name="node")
    constants = {
        "holed": np.array([[1, np.nan, 2]], np.float32),
        "mask": np.array([[True, False, True]]),
    }
    return make_model([node], {"input": [1, 3]}, {"output": None}, constants)


def test_nan_that_is_computed_with_is_refused() -> None:
    with pytest.raises(InputError, match=r"'holed' holds NaN \(1 of 3 numbers\)"):
        check_finite(with_constant("Mul", "input", "holed"))


@pytest.mark.parametrize(
    "node", [("Where", "mask", "input", "holed"), ("Concat", "input", "holed")]
)
def test_nan_that_is_filled_in_is_meant(node: tuple[str, ...]) -> None:
    operator, *inputs = node
    model = with_constant(operator, *inputs)
    for each in model.graph.node:
        if operator == "Concat":
            each.attribute.append(helper.make_attribute("axis", 0))
    check_finite(model)

"""NaN in weights, and weights that vary too little to show a fault."""

import numpy as np
import onnx
import pytest
from onnx import helper

from fewtune.errors import InputError
from fewtune.onnx_graph.bind import bind_shapes
from fewtune.onnx_graph.simplify import simplify
from fewtune.onnx_graph.weight_check import (
    can_show_fault,
    check_finite,
)
from tests import tiny_models
from tests.tiny_models import make_model


def with_constant(operator: str, *inputs: str):
    node = helper.make_node(operator, list(inputs), ["output"], name="node")
    constants = {
        "holed": np.array([[1, np.nan, 2]], np.float32),
        "mask": np.array([[True, False, True]]),
    }
    return make_model([node], {"input": [1, 3]}, {"output": None}, constants)


def test_nan_in_arithmetic_is_refused():
    with pytest.raises(InputError, match=r"'holed' holds NaN \(1 of 3 numbers\)"):
        check_finite(with_constant("Mul", "input", "holed"))


@pytest.mark.parametrize(
    "node", [("Where", "mask", "input", "holed"), ("Concat", "input", "holed")]
)
def test_nan_as_a_fill_value_is_allowed(node):
    operator, *inputs = node
    model = with_constant(operator, *inputs)
    for each in model.graph.node:
        if operator == "Concat":
            each.attribute.append(helper.make_attribute("axis", 0))
    check_finite(model)


def constant_model(varying_elements):
    generator = np.random.default_rng(0)
    weights = {
        "constant": np.full((16, 16), 0.5, np.float32),
        "varying": generator.random((16, varying_elements // 16), dtype=np.float32),
        "bias": np.zeros(8, np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["input", "constant"], ["middle"]),
        helper.make_node("MatMul", ["middle", "varying"], ["output"]),
    ]
    return tiny_models.make_model(nodes, {"input": [1, 16]}, {"output": None}, weights)


def test_most_parameters_must_vary():
    assert can_show_fault(constant_model(512))
    assert not can_show_fault(constant_model(128))


def test_model_without_large_weights_can_show_a_fault():
    assert can_show_fault(tiny_models.elementwise_model())


def test_shipped_light_files_cannot_show_a_fault():
    shipped = next(onnx_light_directory().glob("light_squeezenet.onnx"))
    model = onnx.load(shipped)
    assert not can_show_fault(simplify(bind_shapes(model, {}, {})))


def onnx_light_directory():
    from pathlib import Path

    return Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"

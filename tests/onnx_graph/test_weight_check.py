"""NaN in weights, and weights that vary too little to show a fault."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from fewtune.errors import InputError
from fewtune.onnx_graph.bind import bind_shapes
from fewtune.onnx_graph.checks import can_show_fault, check_finite
from fewtune.onnx_graph.simplify import simplify
from tests import tiny_models
from tests.made.onnx_text import model_of


def with_constant(result):
    constants = {
        "holed": np.array([[1, np.nan, 2]], np.float32),
        "mask": np.array([[True, False, True]]),
    }
    return model_of(f"(float[1,3] x) => (float[] y) {{y = {result}}}", **constants)


def test_nan_in_arithmetic_is_refused():
    with pytest.raises(InputError, match=r"'holed' holds NaN \(1 of 3 numbers\)"):
        check_finite(with_constant("Mul (x, holed)"))


@pytest.mark.parametrize("result", ["Where (mask, x, holed)", "Concat <axis = 0> (x, holed)"])
def test_nan_as_a_fill_value_is_allowed(result):
    check_finite(with_constant(result))


def constant_model(varying_elements):
    generator = np.random.default_rng(0)
    return model_of(
        "(float[1,16] x) => (float[] y) {z = MatMul (x, constant) y = MatMul (z, varying)}",
        constant=np.full((16, 16), 0.5, np.float32),
        varying=generator.random((16, varying_elements // 16), dtype=np.float32),
        bias=np.zeros(8, np.float32),
    )


def test_most_parameters_must_vary():
    assert can_show_fault(constant_model(512))
    assert not can_show_fault(constant_model(128))


def test_model_without_large_weights_can_show_a_fault():
    assert can_show_fault(tiny_models.elementwise_model())


def test_shipped_light_files_cannot_show_a_fault():
    light = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    model = onnx.load(light / "light_squeezenet.onnx")
    assert not can_show_fault(simplify(bind_shapes(model, {}, {})))

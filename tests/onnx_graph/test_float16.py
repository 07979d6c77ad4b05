"""Float16 models are computed in float32, with the same inputs and outputs."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from fewtune.onnx_graph.float16 import has_float16, widen_float16
from tests.made.compiled import compiled, lowered
from tests.made.onnx_text import model_of
from tests.made.outputs import run_onnxruntime
from tests.tiny_models import half_precision_model


def types_of(model) -> set[int]:
    return {tensor.data_type for tensor in model.graph.initializer} & {
        TensorProto.FLOAT,
        TensorProto.FLOAT16,
    }


def test_weights_are_widened_and_the_interface_kept():
    model = half_precision_model()
    wide = widen_float16(model)
    assert has_float16(model)
    assert types_of(model) == {TensorProto.FLOAT16}
    assert types_of(wide) == {TensorProto.FLOAT}
    assert list(wide.graph.input) == list(model.graph.input)
    assert list(wide.graph.output) == list(model.graph.output)


@pytest.mark.slow
def test_kernels_of_float16_models_are_those_of_float32():
    model = half_precision_model()
    module = lowered(model)
    assert "float16" not in "".join(
        str(function.attrs) for name, function in module.functions_items() if "conv" in str(name)
    )
    value = model.graph.input[0]
    shape = [each.dim_value for each in value.type.tensor_type.shape.dim]
    data = np.random.default_rng(0).standard_normal(shape).astype(np.float16)
    (actual,) = compiled(module).outputs([data])
    (expected,) = run_onnxruntime(model, {value.name: data}, 1)
    assert actual.dtype == np.float16
    np.testing.assert_allclose(actual, expected, rtol=4e-3, atol=4e-3)


def test_casts_and_constants_inside_are_widened():
    model = model_of(
        """(int32[4] x) => (float16[4] y) {
            h = Cast <to = 10> (x)
            two = Constant ()
            y = Mul (h, two)
        }""",
        opset=13,
    )
    two = numpy_helper.from_array(np.array(2, np.float16))
    model.graph.node[1].attribute.append(helper.make_attribute("value", two))
    (actual,) = run_onnxruntime(widen_float16(model), {"x": np.arange(4, dtype="i4")}, 1)
    np.testing.assert_array_equal(actual, np.array([0, 2, 4, 6], "f2"))
    assert actual.dtype == np.float16

"""Quantized models compute the same, whatever their constants are named."""

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, parser

from benchmarks.zoo.quantize import quantize

# This scale of `n` has the name that the quantizer gives to the scale of the values in `n`.
_TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1, 4, 6, 6] x) => (float[36, 5] y)
<float[4] SCALE, float[4] shift, float[4, 4, 1, 1] filters, float[4, 5] weights, float[5] bias,
 int64[2] rows = {36, 4}>
{
    c = Conv(x, filters)
    t = Transpose<perm = [0, 2, 3, 1]>(c)
    n = LayerNormalization<axis = -1>(t, SCALE, shift)
    r = Reshape(n, rows)
    y = Gemm(r, weights, bias)
}
"""


def network(scale: str) -> ModelProto:
    from onnx import numpy_helper

    model = parser.parse_model(_TEXT.replace("SCALE", scale))
    random = np.random.default_rng(0)
    del model.graph.initializer[:]
    shapes = {scale: (4,), "shift": (4,), "filters": (4, 4, 1, 1), "weights": (4, 5), "bias": (5,)}
    for name, shape in shapes.items():
        values = random.uniform(0.5, 1.5, shape).astype("float32")
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    model.graph.initializer.append(numpy_helper.from_array(np.array([36, 4]), "rows"))
    return model


def outputs(model: ModelProto) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    given = np.random.default_rng(1).standard_normal((1, 4, 6, 6), dtype="float32")
    return np.asarray(session.run(None, {"x": given})[0])


@pytest.mark.parametrize("scale", ["gamma", "n_scale", "n_zero_point", "weights_quantized"])
def test_a_constant_may_have_a_name_of_the_quantizer(scale):
    given = network(scale)
    made = quantize(given)
    assert any(node.op_type == "QuantizeLinear" for node in made.graph.node)
    expected = outputs(given)
    np.testing.assert_allclose(outputs(made), expected, atol=0.1 * np.abs(expected).max())

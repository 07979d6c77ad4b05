"""onnxruntime's LSTM with 8-bit weights, expanded and compared with onnxruntime."""

import numpy as np
import pytest
from onnx import ModelProto

from fewtune.onnx_graph import bind, simplify
from fewtune.onnx_graph.external_data import LightModel, light
from fewtune.verify.session import run_onnxruntime
from tests.expanded_models import assert_same
from tests.made.layers import quantized_layer
from tests.made.onnx_text import model_of

HIDDEN, WIDTH = 12, 20


@pytest.mark.parametrize("kind", [np.int8, np.uint8])
@pytest.mark.parametrize("by_column", [False, True])
def test_a_layer_quantises_the_input_of_each_product(kind, by_column):
    zeros = (0, 0) if kind is np.int8 else (128, 128)
    assert_same(*quantized_layer(kind, zeros, by_column=by_column, without="p", steps=5))


def test_a_layer_is_unrolled_after_the_graph_is_simplified(monkeypatch):
    """onnxslim would take minutes for thousands of steps, and gain nothing."""
    generator = np.random.default_rng(0)
    shapes = {"w": (2, WIDTH, 4 * HIDDEN), "r": (2, HIDDEN, 4 * HIDDEN)}
    arrays = {name: generator.integers(-9, 9, shape, np.int8) for name, shape in shapes.items()}
    arrays |= {"scale": np.full(2, 0.01, np.float32), "zero": np.zeros(2, np.int8)}
    arrays["shape"] = np.array([0, -1, 2 * HIDDEN])
    model = model_of(
        f"""(float[steps, 1, {WIDTH}] x) => (y) {{
            sequence = com.microsoft.DynamicQuantizeLSTM
                <direction = "bidirectional", hidden_size = {HIDDEN}>
                (x, w, r, , , , , , scale, zero, scale, zero)
            joined = Transpose <perm = [0, 2, 1, 3]> (sequence)
            y = Reshape(joined, shape)
        }}""",
        **arrays,
    )
    given = []

    def slimmed(model: ModelProto) -> LightModel:
        given.append({node.op_type for node in model.graph.node})
        return light(model)

    monkeypatch.setattr(simplify, "slimmed", slimmed)
    bound = bind.bind_shapes(model, {"x": (50, 1, WIDTH)}, {})
    result = simplify.simplify(bound)
    assert given
    assert all("DynamicQuantizeLSTM" in kinds for kinds in given)
    feeds = {"x": generator.standard_normal((50, 1, WIDTH)).astype(np.float32)}
    (wanted,), (actual,) = (run_onnxruntime(each, feeds, 1) for each in (bound, result))
    assert actual.shape == (50, 1, 2 * HIDDEN)
    np.testing.assert_allclose(actual, wanted, atol=1e-6)

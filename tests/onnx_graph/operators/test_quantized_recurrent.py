"""onnxruntime's LSTM with 8-bit weights, expanded and compared with onnxruntime."""

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper

from fewtune.onnx_graph import bind, simplify
from fewtune.onnx_graph.external_data import LightModel, light
from fewtune.verify.session import run_onnxruntime
from tests.expanded_models import assert_node

HIDDEN, WIDTH = 12, 20


@pytest.mark.parametrize("kind", [np.int8, np.uint8])
@pytest.mark.parametrize("by_column", [False, True])
def test_a_layer_quantises_the_input_of_each_product(kind, by_column):
    generator = np.random.default_rng(0)
    limits = np.iinfo(kind)

    def whole(*shape: int) -> np.ndarray:
        return generator.integers(limits.min, limits.max + 1, shape).astype(kind)

    def numbers(*shape: int) -> np.ndarray:
        return generator.standard_normal(shape).astype(np.float32)

    sizes = (2, 4 * HIDDEN) if by_column else (2,)
    scales = [(np.abs(numbers(*sizes)) + 0.5).astype(np.float32) * 0.01 for _ in range(2)]
    zeros = [np.full(sizes, 0 if kind is np.int8 else 128, kind) for _ in range(2)]
    inputs = [
        numbers(5, 1, WIDTH),
        whole(2, WIDTH, 4 * HIDDEN),
        whole(2, HIDDEN, 4 * HIDDEN),
        numbers(2, 8 * HIDDEN),
        None,
        numbers(2, 1, HIDDEN),
        numbers(2, 1, HIDDEN),
        None,
        *(each for pair in zip(scales, zeros, strict=True) for each in pair),
    ]
    assert_node(
        "DynamicQuantizeLSTM",
        inputs,
        outputs=["sequence", "hidden", "cell"],
        constants=[1, 2, 3, 8, 9, 10, 11],
        direction="bidirectional",
        hidden_size=HIDDEN,
    )


def test_a_layer_is_unrolled_after_the_graph_is_simplified(monkeypatch):
    """onnxslim would take minutes for thousands of steps, and gain nothing."""
    generator = np.random.default_rng(0)
    shapes = {"w": (2, WIDTH, 4 * HIDDEN), "r": (2, HIDDEN, 4 * HIDDEN)}
    arrays = {name: generator.integers(-9, 9, shape, np.int8) for name, shape in shapes.items()}
    arrays |= {"scale": np.full(2, 0.01, np.float32), "zero": np.zeros(2, np.int8)}
    arrays["shape"] = np.array([0, -1, 2 * HIDDEN])
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        layer (float[steps, 1, {WIDTH}] x) => (y) {{
            sequence = com.microsoft.DynamicQuantizeLSTM
                <direction = "bidirectional", hidden_size = {HIDDEN}>
                (x, w, r, , , , , , scale, zero, scale, zero)
            joined = Transpose <perm = [0, 2, 1, 3]> (sequence)
            y = Reshape(joined, shape)
        }}"""
    )
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in arrays.items())
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

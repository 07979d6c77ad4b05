"""Small quantized models, by hand and by onnxruntime's quantizer, and their kernels' results."""

from collections import Counter
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto

from fewtune.model.lower import lower
from fewtune.onnx_graph import simplify as prepare
from fewtune.task.analysis import call_counts
from tests.made import onnx_text
from tests.made.compiled import compiled
from tests.made.outputs import run_onnxruntime
from tests.tuned_tiny import target


def model_of(text: str, opset: int = 13, **constants: Any) -> ModelProto:
    """A model in ONNX's text form, with the shapes of its values."""
    return onnx.shape_inference.infer_shapes(onnx_text.model_of(text, opset, **constants))


def simplified(model: ModelProto) -> ModelProto:
    """As it is imported."""
    return prepare.simplify(prepare.with_shapes(model))


def operators(model: ModelProto) -> Counter:
    """How often each operator stands in a model."""
    return Counter(node.op_type for node in model.graph.node)


def differences(
    model: ModelProto, feeds: dict[str, np.ndarray]
) -> tuple[list[np.ndarray], list[str]]:
    """How far each output of the kernels is from onnxruntime's, and the kernels' names."""
    module = lower(simplified(model), target(), "NHWC")
    found = compiled(module).outputs([feeds[value.name] for value in model.graph.input])
    expected = run_onnxruntime(model, feeds, 1)
    for actual, wanted in zip(found, expected, strict=True):
        assert (actual.shape, actual.dtype) == (wanted.shape, wanted.dtype)
    distances = [
        np.abs(actual.astype(np.float64) - wanted.astype(np.float64))
        for actual, wanted in zip(found, expected, strict=True)
    ]
    return distances, list(call_counts(module))


def assert_within_a_step(model: ModelProto, feeds: dict[str, np.ndarray]) -> list[str]:
    """Compare bytes; gives the names of the kernels."""
    (difference,), kernels = differences(model, feeds)
    assert difference.max() <= 1
    off = float(np.mean(difference > 0))
    # What is rounded the other way lies at a half, by the last bit of a factor.
    assert off <= 2e-3
    return kernels


def random_bytes(random, kind, *shape):
    """Bytes of all sizes, the extremes among them."""
    limits = np.iinfo(kind)
    drawn = random.integers(limits.min, limits.max + 1, shape).astype(kind)
    extreme = random.random(shape) < 0.2
    drawn[extreme] = random.choice([limits.min, limits.max], int(extreme.sum()))
    return drawn


def network(random) -> ModelProto:
    """Convolutions of 3, 16 and 17 channels, a pool, a residual, a concatenation, a classifier."""

    def floats(*shape, scale=None):
        deviation = scale or np.sqrt(2 / np.prod(shape[1:]))
        return (random.standard_normal(shape) * deviation).astype(np.float32)

    constants = {
        "w1": floats(16, 3, 3, 3),
        "b1": floats(16, scale=0.1),
        "w2": floats(17, 16, 1, 1),
        "b2": floats(17, scale=0.1),
        "w3": floats(17, 17, 3, 3),
        "w4": floats(17, 1, 3, 3),
        "w5": floats(10, 34),
        "b5": floats(10, scale=1),
    }
    return model_of(
        """(float[1,3,17,17] x) => (float[1,10] y) {
            c1 = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, w1, b1)
            r1 = Relu (c1)
            p1 = MaxPool <kernel_shape = [2, 2], strides = [1, 1]> (r1)
            c2 = Conv (p1, w2, b2)
            c3 = Conv <pads = [1, 1, 1, 1]> (c2, w3)
            a1 = Add (c2, c3)
            r2 = Relu (a1)
            c4 = Conv <pads = [1, 1, 1, 1], group = 17> (r2, w4)
            joined = Concat <axis = 1> (c4, r2)
            mean = GlobalAveragePool (joined)
            flat = Flatten (mean)
            y = Gemm <transB = 1> (flat, w5, b5)
        }""",
        **constants,
    )


def quantized_network(directory, seed=0, **given) -> tuple[ModelProto, dict[str, np.ndarray]]:
    """The network in eight bits by onnxruntime's quantizer, and an input."""
    from onnxruntime.quantization import CalibrationDataReader, quantize_static

    random = np.random.default_rng(seed)
    draws = [{"x": random.standard_normal((1, 3, 17, 17)).astype(np.float32)} for _ in range(3)]

    class Reader(CalibrationDataReader):
        def __init__(self):
            self.left = iter(draws)

        def get_next(self):
            return next(self.left, None)

    onnx.save(network(random), directory / "float.onnx")
    quantize_static(directory / "float.onnx", directory / "bytes.onnx", Reader(), **given)
    return onnx.load(directory / "bytes.onnx"), draws[0]

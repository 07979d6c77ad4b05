"""Which intermediate values are compared, and which values are expected."""

from collections.abc import Sequence

import numpy as np
from onnx import ModelProto

from fewtune.runtime.executable import Observer
from fewtune.verify.intermediate import IntermediateValues
from tests.made.onnx_text import model_of
from tests.tiny_models import random_weight


class Given:
    """An array that a kernel writes."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def numpy(self) -> np.ndarray:
        """The array."""
        return self._array


class Writes:
    """A library whose kernels write given arrays, a kernel each."""

    def __init__(self, arrays: Sequence[np.ndarray]) -> None:
        self._arrays = arrays

    def observed(self, inputs: list[np.ndarray], observe: Observer) -> list[np.ndarray]:
        """Pass the written arrays to ``observe``."""
        for number, array in enumerate(self._arrays):
            observe(f"kernel{number}", 0, [Given(array)])
        return [self._arrays[-1]]


WEIGHT = random_weight(np.random.default_rng(0), 16, 8)
BIAS = np.full(8, 1e-3, np.float32)
FEEDS = {"x": np.random.default_rng(1).standard_normal((4, 16)).astype("f4")}
SUMS = FEEDS["x"] @ WEIGHT


def dense() -> ModelProto:
    """One dense layer with a small bias, and ReLU."""
    text = "(float[4,16] x) => (float[4,8] y) {sums = Gemm (x, w, b) y = Relu (sums)}"
    return model_of(text, w=WEIGHT, b=BIAS)


def taps_of(arrays: Sequence[np.ndarray]) -> list[tuple[str, str]]:
    model = dense()
    taps = IntermediateValues(model, model, FEEDS, 1, 0).taps(Writes(arrays), ["x"])
    return [(tap.site.kernel, tap.expected.name) for tap in taps]


def test_an_almost_equal_value_is_not_taken_for_that_of_another_kernel():
    assert taps_of([SUMS, SUMS + BIAS]) == [("kernel1", "sums")]


def test_a_model_that_onnxruntime_refuses_has_no_taps(caplog):
    model = dense()
    model.graph.node[0].op_type = "Unheard"
    assert IntermediateValues(model, model, FEEDS, 1, 0).taps(Writes([SUMS]), ["x"]) == []
    assert "are not compared" in caplog.text

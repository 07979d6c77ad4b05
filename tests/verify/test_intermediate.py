"""Which intermediate values are compared, and which values are expected."""

from collections.abc import Sequence

import numpy as np
import onnxruntime
from onnx import ModelProto

from fewtune.onnx_graph import session
from fewtune.onnx_graph.external_data import light
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


def test_a_model_that_onnxruntime_refuses_has_no_taps_and_a_note():
    model = dense()
    model.graph.node[0].op_type = "Unheard"
    inside = IntermediateValues(model, model, FEEDS, 1, 0)
    assert inside.taps(Writes([SUMS]), ["x"]) == []
    assert inside.note.startswith("values inside the model are not compared: ")


def test_weights_that_are_transposed_views_are_compared():
    weight = random_weight(np.random.default_rng(0), 16, 2048)
    text = "(float[4,16] x) => (float[4,2048] y) {sums = MatMul (x, w) y = Tanh (sums)}"
    given = light(model_of(text, w=weight))
    model = given._replace(arrays={"w": np.asfortranarray(weight)})
    inside = IntermediateValues(model, model, FEEDS, 1, 0)
    (tap,) = inside.taps(Writes([FEEDS["x"] @ weight]), ["x"])
    assert (tap.expected.name, inside.note) == ("sums", "")


def test_where_onnxruntimes_optimiser_fails_values_are_compared_without_it(monkeypatch):
    levels = []

    def loaded(source, options):
        levels.append(options.graph_optimization_level)
        if options.graph_optimization_level != onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL:
            raise RuntimeError("Failed to find node output")
        return onnxruntime.InferenceSession(source, options)

    monkeypatch.setattr(session, "_loaded", loaded)
    assert taps_of([SUMS, SUMS + BIAS]) == [("kernel1", "sums")]
    assert len(set(levels)) == 2

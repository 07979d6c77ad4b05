"""Noise of operators: right results that are rounded otherwise pass, and wrong ones do not."""

from collections.abc import Callable

import numpy as np
import pytest
from onnx import ModelProto

from fewtune.verify.comparison import Difference
from fewtune.verify.draws import drawn_inputs
from fewtune.verify.make_reference import make_reference
from fewtune.verify.reference import Draw
from fewtune.verify.values import tensor_specs
from tests.made.onnx_text import model_of

Feeds = dict[str, np.ndarray]
ROWS, WIDTH, EPSILON = 12, 64, 1e-5


def checked(
    model: ModelProto, run: Callable[[Feeds], np.ndarray], data: np.ndarray | None = None
) -> Difference:
    """The check of a function of input ``x`` beside onnxruntime's outputs."""
    inputs, outputs = tensor_specs(model)
    draws = [Draw("some", {"x": data})] if data is not None else drawn_inputs(model, inputs, 0)
    reference = make_reference(model, model, outputs, draws, 1, 0)
    return reference.check(lambda feeds: [run(feeds)])


def below_zero() -> np.ndarray:
    """Numbers of every magnitude."""
    return -(10 ** np.random.default_rng(0).uniform(-6, 0, (ROWS, WIDTH)))


def confident() -> np.ndarray:
    """Logits of which one is much larger than the others."""
    logits = np.random.default_rng(1).standard_normal((ROWS, WIDTH))
    logits[:, 3] += np.linspace(6, 14, ROWS)
    return logits


def selu(x: np.ndarray) -> np.ndarray:
    alpha, gamma = (float(np.float32(each)) for each in (1.6732632, 1.0507009))
    return gamma * np.where(x > 0, x, alpha * np.expm1(x))


def log_softmax(x: np.ndarray) -> np.ndarray:
    apart = x - x.max(axis=1, keepdims=True)
    others = np.exp(apart).sum(axis=1, keepdims=True) - 1
    return apart - np.log1p(others)


SQUASHING: dict[str, tuple[Callable[[], np.ndarray], Callable[[np.ndarray], np.ndarray]]] = {
    "Elu": (below_zero, lambda x: np.where(x > 0, x, np.expm1(x))),
    "Selu": (below_zero, selu),
    "LogSoftmax": (confident, log_softmax),
}


@pytest.mark.parametrize("operator", SQUASHING)
@pytest.mark.parametrize("factor", [1.0, 1.001])
def test_differences_of_an_exponential_and_one(operator, factor):
    draw, exact = SQUASHING[operator]
    shape = f"float[{ROWS},{WIDTH}]"
    model = model_of(f"({shape} x) => ({shape} y) {{y = {operator} (x)}}")

    def run(feeds: Feeds) -> np.ndarray:
        found = exact(feeds["x"].astype("f8"))
        found[:, 5] *= factor
        return found.astype("f4")

    assert (checked(model, run, draw().astype("f4")).allowances <= 1) == (factor == 1)


def transformed(signals: np.ndarray) -> np.ndarray:
    """A Fourier transform as a product with a table, with rounded partial sums."""
    length = signals.shape[1]
    angles = -2 * np.pi * np.outer(np.arange(length), np.arange(length)) / length
    tables = (np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32))
    return np.stack([signals[..., 0] @ table for table in tables], -1)


@pytest.mark.parametrize("factor", [1.0, 1.001])
def test_a_loud_signal_does_not_hide_a_fault_in_a_quiet_one(factor):
    # The imaginary part of each mean is exactly zero: it is compared as well.
    model = model_of("(float[3,12,1] x) => (float[3,12,2] y) {y = DFT <axis = 1> (x)}")
    loud = np.array([1.0, 1e6, 1.0]).reshape(3, 1, 1)
    data = (loud * np.random.default_rng(0).random((3, 12, 1))).astype("f4")

    def run(feeds: Feeds) -> np.ndarray:
        found = transformed(feeds["x"])
        found[0] *= factor
        return found

    found = checked(model, run, data)
    assert (found.allowances <= 1) == (factor == 1), found.text


# Rows of nearly equal numbers: their variance is a small difference of larger sums.
SCALE, SHIFT = np.random.default_rng(1).standard_normal((2, WIDTH)).astype(np.float32)


def normalization() -> ModelProto:
    shape = f"float[{ROWS},{WIDTH}]"
    node = f"y = LayerNormalization <epsilon = {EPSILON}> (x, scale, shift)"
    return model_of(f"({shape} x) => ({shape} y) {{{node}}}", scale=SCALE, shift=SHIFT)


def rows(far: float) -> np.ndarray:
    """Rows whose means are so many standard deviations from zero."""
    return (far + np.random.default_rng(2).standard_normal((ROWS, WIDTH))).astype(np.float32)


def normalized(feeds: Feeds) -> np.ndarray:
    data = feeds["x"].astype(np.float64)
    deviation = np.sqrt(data.var(axis=1, keepdims=True) + EPSILON)
    normal = (data - data.mean(axis=1, keepdims=True)) / deviation
    return (normal * SCALE + SHIFT).astype(np.float32)


@pytest.mark.parametrize("far", [0.0, 30.0, 300.0, 2000.0])
def test_an_exact_normalization_is_right(far):
    found = checked(normalization(), normalized, rows(far))
    assert found.allowances <= 1, found.text


@pytest.mark.parametrize(("far", "factor"), [(0.0, 1.002), (30.0, 1.05)])
def test_a_row_that_is_off_is_refused(far, factor):
    def wrong(feeds: Feeds) -> np.ndarray:
        found = normalized(feeds)
        found[3] = (found[3] - SHIFT) * factor + SHIFT
        return found

    assert checked(normalization(), wrong, rows(far)).allowances > 1

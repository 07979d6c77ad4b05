"""Noise of operators: right results that are rounded otherwise pass, and wrong ones do not."""

from collections.abc import Callable

import numpy as np
import pytest
from onnx import ModelProto, helper

from fewtune.onnx_graph.simplify import simplify
from fewtune.verify.comparison import Difference
from fewtune.verify.draws import Draw, drawn_inputs
from fewtune.verify.make_reference import make_reference
from fewtune.verify.noise import NoiseMeter
from fewtune.verify.session import run_onnxruntime, tensor_specs
from tests.made.onnx_text import model_of
from tests.tiny_models import make_model

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


def test_an_embedding_concatenated_with_an_input_moves():
    random = np.random.default_rng(0)
    # The embedding cancels in the product, and the other input is far smaller.
    table = random.standard_normal((20, WIDTH)).astype(np.float32)
    weight = random.standard_normal((WIDTH + 1, 8)).astype(np.float32)
    weight[:WIDTH] -= np.linalg.lstsq(table, table @ weight[:WIDTH], rcond=None)[0]
    ids = random.integers(0, 20, 40)
    model = model_of(
        """(float[40,1] x, int64[40] ids) => (float[40,8] y) {
            found = Gather (table, ids)
            both = Concat <axis = 1> (found, x)
            y = MatMul (both, weight)
        }""",
        table=table,
        weight=weight,
    )
    feeds = {"ids": ids, "x": (1e-6 * random.standard_normal((40, 1))).astype(np.float32)}
    simplified = simplify(model)
    (value,) = run_onnxruntime(simplified, feeds, 1)
    (expected,) = NoiseMeter(simplified, 1, {}).expected(feeds, [value], [], seed=0)
    terms = np.abs(table[ids]) @ np.abs(weight[:WIDTH])
    rounding = np.finfo(np.float32).eps * terms / np.sqrt(WIDTH)
    assert np.median(expected.noise / rounding) > 1


def test_an_element_in_a_later_block_has_the_noise_of_the_same_element_in_an_earlier_one():
    count = 100_000  # several blocks, the last of them not full
    model = model_of(f"(float[{count}] x) => (float[{count}] y) {{y = Add (x, x)}}")
    x = np.ones(count, np.float32)
    x[[7, 99_990]] = np.inf, 0.0
    (found,) = NoiseMeter(model, 1, {}).expected({"x": x}, [2 * x], [], seed=0)
    # Infinity has no finite distance, and zero does not move: only the typical noise is left.
    assert found.noise[7] == found.noise[99_990] == found.noise.min() > 0
    means = [float(np.sqrt(np.mean(np.square(part)))) for part in np.array_split(found.noise, 4)]
    assert max(means) < 1.05 * min(means)


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


def transform(opset: int, axis: int | None) -> ModelProto:
    """A Fourier transform of real signals: the imaginary part of their mean is exactly zero."""
    named = ["x"] if axis is None or opset < 20 else ["x", "", "axis"]
    attributes = {"axis": axis} if axis is not None and opset < 20 else {}
    constants = {"axis": np.array(axis)} if len(named) > 1 else {}
    node = helper.make_node("DFT", named, ["y"], **attributes)
    return make_model([node], {"x": [3, 12, 1]}, {"y": [3, 12, 2]}, constants, opset)


def table_product(signals: np.ndarray, axis: int) -> np.ndarray:
    """The transform as a product with a table, with rounded partial sums."""
    signals = np.moveaxis(signals[..., 0], axis, -1)
    length = signals.shape[-1]
    angles = -2 * np.pi * np.outer(np.arange(length), np.arange(length)) / length
    parts = [
        np.moveaxis(signals @ table(angles).astype(np.float32), -1, axis)
        for table in (np.cos, np.sin)
    ]
    return np.stack(parts, -1)


@pytest.mark.parametrize(("opset", "axis"), [(17, None), (19, 0), (20, None), (20, 0)])
def test_values_of_a_transform_that_cancel_may_be_rounded(opset, axis):
    along = 1 if axis is None else axis
    found = checked(transform(opset, axis), lambda feeds: table_product(feeds["x"], along))
    assert found.allowances <= 1, found.text


@pytest.mark.parametrize("place", [(0, 0, 0), (2, 3, 1)])
def test_a_number_of_a_transform_off_by_a_thousandth_is_refused(place):
    def wrong(feeds: Feeds) -> np.ndarray:
        found = table_product(feeds["x"], 1)
        found[place] *= 1.001
        return found

    assert checked(transform(17, 1), wrong).allowances > 1


@pytest.mark.parametrize("factor", [1.0, 1.001])
def test_a_loud_signal_does_not_hide_a_fault_in_a_quiet_one(factor):
    loud = np.array([1.0, 1e6, 1.0]).reshape(3, 1, 1)
    data = (loud * np.random.default_rng(0).random((3, 12, 1))).astype("f4")

    def run(feeds: Feeds) -> np.ndarray:
        found = table_product(feeds["x"], 1)
        found[0] *= factor
        return found

    found = checked(transform(17, 1), run, data)
    assert (found.allowances <= 1) == (factor == 1), found.text


def test_short_transforms_are_rounded_by_frame():
    length, frame, step = 12, 8, 2
    starts = range(0, length - frame + 1, step)
    node = helper.make_node("STFT", ["x", "step", "", "frame"], ["y"], onesided=0)
    constants = {"step": np.array(step), "frame": np.array(frame)}
    shape = [3, len(starts), frame, 2]
    model = make_model([node], {"x": [3, length, 1]}, {"y": shape}, constants, 17)

    def run(feeds: Feeds) -> np.ndarray:
        cut = np.stack([feeds["x"][:, start : start + frame] for start in starts], 1)
        return table_product(cut, 2)

    assert checked(model, run).allowances <= 1


# Rows of nearly equal numbers: their variance is a small difference of larger sums.
SCALE, SHIFT = np.random.default_rng(1).standard_normal((2, WIDTH)).astype(np.float32)


def normalization(has_shift: bool = True) -> ModelProto:
    constants = {"scale": SCALE} | ({"shift": SHIFT} if has_shift else {})
    node = helper.make_node("LayerNormalization", ["x", *constants], ["y"], epsilon=EPSILON)
    return make_model([node], {"x": [ROWS, WIDTH]}, {"y": [ROWS, WIDTH]}, constants, 17)


def rows(far: float) -> np.ndarray:
    """Rows whose means are so many standard deviations from zero."""
    return (far + np.random.default_rng(2).standard_normal((ROWS, WIDTH))).astype(np.float32)


def normalized(feeds: Feeds, has_shift: bool = True) -> np.ndarray:
    data = feeds["x"].astype(np.float64)
    deviation = np.sqrt(data.var(axis=1, keepdims=True) + EPSILON)
    normal = (data - data.mean(axis=1, keepdims=True)) / deviation
    return (normal * SCALE + SHIFT * has_shift).astype(np.float32)


@pytest.mark.parametrize("has_shift", [False, True])
@pytest.mark.parametrize("far", [0.0, 30.0, 300.0, 2000.0])
def test_an_exact_normalization_is_right(far, has_shift):
    model = normalization(has_shift)
    found = checked(model, lambda feeds: normalized(feeds, has_shift), rows(far))
    assert found.allowances <= 1, found.text


def test_the_mean_of_equal_numbers_may_be_rounded():
    random = np.random.default_rng(3)
    data = np.repeat(random.uniform(0.5, 1, (ROWS, 1)), WIDTH, 1).astype(np.float32)
    off = (data * 2.0**-23 / np.sqrt(EPSILON) * SCALE + SHIFT).astype(np.float32)
    assert checked(normalization(), lambda _: off, data).allowances <= 1


@pytest.mark.parametrize(("far", "factor"), [(0.0, 1.002), (30.0, 1.05)])
def test_a_row_that_is_off_is_refused(far, factor):
    def wrong(feeds: Feeds) -> np.ndarray:
        found = normalized(feeds)
        found[3] = (found[3] - SHIFT) * factor + SHIFT
        return found

    assert checked(normalization(), wrong, rows(far)).allowances > 1


def test_a_variance_of_squares_far_from_zero_is_refused():
    def in_one_pass(feeds: Feeds) -> np.ndarray:
        data = feeds["x"]
        mean = data.mean(axis=1, keepdims=True)
        variance = np.abs((data * data).mean(axis=1, keepdims=True) - mean * mean)
        return (data - mean) / np.sqrt(variance + np.float32(EPSILON)) * SCALE + SHIFT

    assert checked(normalization(), in_one_pass, rows(2000.0)).allowances > 1

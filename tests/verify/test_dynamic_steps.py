"""Values that take another step in models with dynamic or written-out quantisation."""

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from fewtune.verify.comparison import is_graded
from fewtune.verify.jitter import jittered
from tests.quantized_models import model_of
from tests.verify.imported import Changed, imported

_CHANNELS, _LAYERS = 16, 6


def found_while_running() -> ModelProto:
    """Convolutions of bytes with dynamic scales, each followed by a sigmoid and a product."""
    random = np.random.default_rng(0)
    nodes, constants, x = [], {}, "x"
    for layer in range(_LAYERS):
        weights = random.integers(-128, 128, (_CHANNELS, _CHANNELS, 3, 3)).astype(np.int8)
        constants |= {f"w{layer}": weights, f"s{layer}": np.float32(1e-3)}
        a = [f"{name}{layer}" for name in ("q", "sx", "zx", "i", "f", "s2", "y", "g", "x")]
        q, sx, zx, i, f, s2, y, g, out = a
        nodes += [
            helper.make_node("DynamicQuantizeLinear", [x], [q, sx, zx]),
            helper.make_node("ConvInteger", [q, f"w{layer}", zx], [i], pads=[1, 1, 1, 1]),
            helper.make_node("Cast", [i], [f], to=TensorProto.FLOAT),
            helper.make_node("Mul", [sx, f"s{layer}"], [s2]),
            helper.make_node("Mul", [f, s2], [y]),
            helper.make_node("Sigmoid", [y], [g]),
            helper.make_node("Mul", [y, g], [out]),
        ]
        x = out
    # The last bytes less their zero point, which two kernels read.
    nodes += [
        helper.make_node("DynamicQuantizeLinear", [x], ["q", "sx", "zx"]),
        helper.make_node("Cast", ["q"], ["qi"], to=TensorProto.INT32),
        helper.make_node("Cast", ["zx"], ["zi"], to=TensorProto.INT32),
        helper.make_node("Sub", ["qi", "zi"], ["difference"]),
        helper.make_node("Transpose", ["difference"], ["turned"], perm=[0, 1, 3, 2]),
        helper.make_node("ReduceMax", ["turned"], ["most"], axes=[2], keepdims=1),
        helper.make_node("Add", ["difference", "most"], ["added"]),
        helper.make_node("Cast", ["added"], ["cast"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["cast", "sx"], ["last"]),
        helper.make_node("Add", ["last", x], ["out"]),
    ]
    return _model(nodes, "out", constants)


def written_out() -> ModelProto:
    """Convolutions whose inputs are rounded to a grid, as in quantisation-aware training."""
    random = np.random.default_rng(0)
    nodes, constants, x = [], {"low": np.float32(-128), "high": np.float32(127)}, "x"
    for layer in range(_LAYERS):
        weights = random.standard_normal((_CHANNELS, _CHANNELS, 3, 3)).astype(np.float32) / 12
        constants |= {f"w{layer}": weights, f"s{layer}": np.float32(0.021)}
        d, r, c, m, y = (f"{name}{layer}" for name in "drcmy")
        nodes += [
            helper.make_node("Div", [x, f"s{layer}"], [d]),
            helper.make_node("Round", [d], [r]),
            helper.make_node("Clip", [r, "low", "high"], [c]),
            helper.make_node("Mul", [c, f"s{layer}"], [m]),
            helper.make_node("Conv", [m, f"w{layer}"], [y], pads=[1, 1, 1, 1]),
        ]
        x = y
    return _model(nodes, x, constants)


def _model(nodes, output, constants) -> ModelProto:
    kind = TensorProto.FLOAT, [1, _CHANNELS, 24, 24]
    return model_of(nodes, {"x": kind}, {output: kind}, constants)


@pytest.fixture(scope="module", params=[found_while_running, written_out])
def made(request):
    return imported(request.param())


@pytest.mark.slow
def test_bytes_in_wide_integers_need_not_be_equal(made):
    assert all(is_graded(tap.expected.values.dtype) for tap in made.reference.taps)


@pytest.mark.parametrize("model", [found_while_running, written_out])
def test_values_that_are_rounded_take_steps(model):
    assert jittered(model()).takes_steps


def test_rounded_integers_take_no_steps():
    nodes = [
        helper.make_node("Cast", ["x"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Floor", ["f"], ["y"]),
    ]
    model = model_of(nodes, {"x": (TensorProto.INT64, [4])}, {"y": (TensorProto.FLOAT, [4])}, {})
    assert not jittered(model).takes_steps


@pytest.mark.slow
def test_a_right_model_passes_by_its_first_plan(made):
    assert not made.left_out
    assert len(made.reference.taps) >= _LAYERS


@pytest.mark.slow
@pytest.mark.parametrize("layer", [0, _LAYERS - 1])
def test_a_layer_off_by_a_tenth_is_refused(made, layer):
    calls = []

    def scaled(kernel, arguments) -> None:
        if "conv2d" not in kernel:
            return
        calls.append(kernel)
        floats = [a for a in arguments[:-1] if a.numpy().dtype == np.float32]
        if len(calls) == layer + 1:
            floats[-1].copyfrom(floats[-1].numpy() * np.float32(1.1))

    library = Changed(made.compiled, scaled)
    assert made.reference.check_library(library, ["x"]).allowances > 1

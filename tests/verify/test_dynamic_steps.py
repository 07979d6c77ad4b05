"""Values that take another step in models with dynamic or written-out quantisation."""

import numpy as np
import onnx
import pytest
from onnx import ModelProto

from tests.made.onnx_text import model_of
from tests.verify.imported import Changed, imported

_CHANNELS, _LAYERS = 16, 6

LAYER_OF_BYTES = """
    q#, sx#, zx# = DynamicQuantizeLinear (INPUT)
    i# = ConvInteger <pads = [1, 1, 1, 1]> (q#, w#, zx#)
    f# = Cast <to = 1> (i#)
    t# = Mul (sx#, s#)
    y# = Mul (f#, t#)
    g# = Sigmoid (y#)
    x# = Mul (y#, g#)"""
# The last bytes less their zero point, which two kernels read.
LAST_OF_BYTES = """
    q, sx, zx = DynamicQuantizeLinear (INPUT)
    qi = Cast <to = 6> (q)
    zi = Cast <to = 6> (zx)
    difference = Sub (qi, zi)
    turned = Transpose <perm = [0, 1, 3, 2]> (difference)
    most = ReduceMax <axes = [2], keepdims = 1> (turned)
    added = Add (difference, most)
    cast = Cast <to = 1> (added)
    last = Mul (cast, sx)
    out = Add (last, INPUT)"""
LAYER_ON_A_GRID = """
    d# = Div (INPUT, s#)
    r# = Round (d#)
    c# = Clip (r#, low, high)
    m# = Mul (c#, s#)
    x# = Conv <pads = [1, 1, 1, 1]> (m#, w#)"""


_SHAPE = (_LAYERS, _CHANNELS, _CHANNELS, 3, 3)


def _model(layer: str, end: str, weights: np.ndarray, scale: float) -> ModelProto:
    """Layers one after the other, and what ends the model."""
    text, x = "", "x"
    constants = {"low": np.float32(-128), "high": np.float32(127)}
    for number, weight in enumerate(weights):
        constants |= {f"w{number}": weight, f"s{number}": np.float32(scale)}
        text += layer.replace("INPUT", x).replace("#", str(number))
        x = f"x{number}"
    text += end.replace("INPUT", x)
    kind, out = f"float[1,{_CHANNELS},24,24]", "out" if end else x
    model = model_of(f"({kind} x) => ({kind} {out}) {{{text}}}", 13, **constants)
    return onnx.shape_inference.infer_shapes(model)


def found_while_running() -> ModelProto:
    """Convolutions of bytes with dynamic scales, each followed by a sigmoid and a product."""
    weights = np.random.default_rng(0).integers(-128, 128, _SHAPE).astype(np.int8)
    return _model(LAYER_OF_BYTES, LAST_OF_BYTES, weights, 1e-3)


def written_out() -> ModelProto:
    """Convolutions whose inputs are rounded to a grid, as in quantisation-aware training."""
    weights = np.random.default_rng(0).standard_normal(_SHAPE).astype(np.float32) / 12
    return _model(LAYER_ON_A_GRID, "", weights, 0.021)


@pytest.fixture(scope="module", params=[found_while_running, written_out])
def made(request):
    return imported(request.param())


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

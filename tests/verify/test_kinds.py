"""Kinds of outputs that a check might refuse although they are right: each passes."""

from typing import Any

import numpy as np
import pytest

from tests.made.onnx_text import model_of
from tests.tiny_models import random_weight
from tests.verify.imported import imported

SCALES = {"big": np.float32(1e6), "tiny": np.float32(1e-12)}
MASK = np.random.default_rng(1).random((1, 1, 8, 8)) < 0.4
TRIANGLE = np.triu(np.full((8, 8), -np.inf, np.float32), 1)
PLANE = "float[1,8,8,8]"
# By name: nodes behind a convolution with output ``c``, outputs, constants.
KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "mixed scales": (
        """s = Sigmoid (c)
        b = Mul (c, big)
        t = Mul (s, tiny)
        y = Concat <axis = 1> (b, t, s)""",
        "float[1,24,8,8] y",
        SCALES,
    ),
    "ties of a maximum": (
        """r = Relu (c)
        f = Floor (r)
        y = ArgMax <axis = 1> (f)
        z = ArgMax <axis = 1, select_last_index = 1> (f)""",
        "int64[1,1,8,8] y, int64[1,1,8,8] z",
        {},
    ),
    "booleans": ("y = Greater (c, low)", "bool[1,8,8,8] y", {"low": SCALES["tiny"]}),
    "NaN of half the elements": ("y = Log (c)", f"{PLANE} y", {}),
    "NaN inside only": (
        "q = Sqrt (c) n = IsNaN (q) y = Where (n, zero, q)",
        f"{PLANE} y",
        {"zero": np.float32(0)},
    ),
    "division by zero": ("r = Relu (c) y = Div (one, r)", f"{PLANE} y", {"one": np.float32(1)}),
    "no element": (
        "y = Slice (c, two, two, one) z = Relu (c)",
        f"float[1,0,8,8] y, {PLANE} z",
        {"two": [2], "one": [1]},
    ),
    "the lowest float and a softmax of it": (
        "a = Where (mask, c, fill) y = Softmax <axis = -1> (a)",
        f"{PLANE} a, {PLANE} y",
        {"mask": MASK, "fill": np.finfo(np.float32).min},
    ),
    "minus infinity in a triangle": (
        "a = Add (c, triangle) y = Softmax <axis = -1> (a)",
        f"{PLANE} a, {PLANE} y",
        {"triangle": TRIANGLE},
    ),
    "overflow": ("m = Mul (c, k) y = Exp (m)", f"{PLANE} y", {"k": np.float32(60)}),
    "digits that cancel": ("m = Add (c, k) y = Sub (m, k)", f"{PLANE} y", {"k": np.float32(1e4)}),
    "pixels": (
        "m = Mul (c, k) l = Clip (m, zero, most) y = Cast <to = 2> (l)",
        "uint8[1,8,8,8] y",
        {"k": np.float32(64), "zero": np.float32(0), "most": np.float32(255)},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_right_model_passes(kind):
    nodes, outputs, constants = KINDS[kind]
    conv = "[conv] c = Conv <pads = [1, 1, 1, 1]> (x, w)"
    model = model_of(
        f"(float[1,3,8,8] x) => ({outputs}) {{{conv} {nodes}}}",
        w=random_weight(np.random.default_rng(0), 8, 3, 3, 3),
        **constants,
    )
    assert imported(model).reference.taps

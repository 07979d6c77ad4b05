"""Kinds of outputs that a check might refuse although they are right: each passes.

More of them, without a library: `tests/verify/test_reference.py`.
"""

from typing import Any

import numpy as np
import pytest

from tests.made.onnx_text import model_of
from tests.tiny_models import random_weight
from tests.verify.imported import imported

SCALES = {"big": np.float32(1e6), "tiny": np.float32(1e-12)}
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
    "overflow": ("m = Mul (c, k) y = Exp (m)", f"{PLANE} y", {"k": np.float32(60)}),
    "digits that cancel": ("m = Add (c, k) y = Sub (m, k)", f"{PLANE} y", {"k": np.float32(1e4)}),
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

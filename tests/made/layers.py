"""Models of one recurrent layer."""

import numpy as np
from onnx import helper

from tests.expanded_models import node_model

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def layer(
    kind,
    steps=5,
    batch=3,
    direction="forward",
    states=True,
    bias=True,
    peepholes=False,
    lengths=None,
    opset=14,
    outputs=None,
    hidden=6,
    **attributes,
):
    """A recurrent layer of 4 inputs, and what to feed."""
    generator = np.random.default_rng(0)
    gates, directions = GATES[kind], 2 if direction == "bidirectional" else 1
    shapes = {"W": (directions, gates * hidden, 4), "R": (directions, gates * hidden, hidden)}
    shapes["B"] = (directions, 2 * hidden * gates) if bias else None
    shapes["h0"] = (directions, batch, hidden) if states else None
    names = ["x", "W", "R", "B" if bias else "", "lengths" if lengths else ""]
    names.append("h0" if states else "")
    if kind == "LSTM":
        shapes["c0"] = (directions, batch, hidden) if states else None
        shapes["P"] = (directions, 3 * hidden) if peepholes else None
        names += ["c0" if states else "", "P" if peepholes else ""]
    arrays = {
        name: (generator.standard_normal(shape) * 0.6 * (6 / hidden) ** 0.5).astype(np.float32)
        for name, shape in shapes.items()
        if shape
    }
    if lengths:
        arrays["lengths"] = np.array(lengths, np.int32)
    constants = list(arrays)
    arrays["x"] = generator.standard_normal((steps, batch, 4)).astype(np.float32)
    outputs = outputs or ["y", "y_h", "y_c"][: 3 if kind == "LSTM" else 2]
    node = helper.make_node(
        kind, names, outputs, "layer", hidden_size=hidden, direction=direction, **attributes
    )
    return node_model(node, arrays, constants, opset)

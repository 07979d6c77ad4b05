"""Models of one recurrent layer."""

import numpy as np
from onnx import ModelProto, helper

from tests.expanded_models import node_model
from tests.made.onnx_text import attributes, model_of

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
    if kind == "GRU":
        attributes = {"linear_before_reset": 1} | attributes
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


WIDTH = 20


def quantized_layer(
    kind: type = np.int8,
    zeros: tuple[int, int] = (0, 0),
    direction: str = "bidirectional",
    hidden: int = 12,
    batch: int = 1,
    steps: int = 7,
    by_column: bool = True,
    without: str = "",
    **more: object,
) -> tuple[ModelProto, dict[str, np.ndarray]]:
    """A layer of weights of any bytes, and what to feed.

    ``zeros`` are the zero points of both weights; onnxruntime refuses several of one. ``without``
    names inputs, of one letter each, that are left out.
    """
    generator = np.random.default_rng(0)
    directions, limits = 1 + (direction == "bidirectional"), np.iinfo(kind)

    def whole(*shape: int) -> np.ndarray:
        return generator.integers(limits.min, limits.max + 1, shape).astype(kind)

    def numbers(*shape: int) -> np.ndarray:
        return generator.standard_normal(shape).astype(np.float32)

    def scales(*shape: int) -> np.ndarray:
        return np.float32(0.005) * (np.abs(numbers(*shape)) + np.float32(0.5))

    sizes = (directions, 4 * hidden) if by_column else (directions,)
    arrays = {
        "w": whole(directions, WIDTH, 4 * hidden),
        "r": whole(directions, hidden, 4 * hidden),
        "b": numbers(directions, 8 * hidden),
        "p": numbers(directions, 3 * hidden),
        "h": numbers(directions, batch, hidden),
        "c": numbers(directions, batch, hidden),
        "ws": scales(*sizes),
        "wz": np.full(sizes, zeros[0], kind),
        "rs": scales(*sizes),
        "rz": np.full(sizes, zeros[1], kind),
    }
    given = ["x", "w", "r", "b", "", "h", "c", "p", "ws", "wz", "rs", "rz"]
    inputs = ["" if name in without else name for name in given]
    node = attributes(direction=direction, hidden_size=hidden, **more)
    state = f"float[{directions},{batch},{hidden}]"
    text = f"""(float[{steps},{batch},{WIDTH}] x)
    => (float[{steps},{directions},{batch},{hidden}] sequence, {state} hidden, {state} cell) {{
        sequence, hidden, cell = com.microsoft.DynamicQuantizeLSTM {node} ({", ".join(inputs)})
    }}"""
    model = model_of(text, **{n: array for n, array in arrays.items() if n in inputs})
    return model, {"x": numbers(steps, batch, WIDTH)}

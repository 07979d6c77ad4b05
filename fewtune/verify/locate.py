"""Finds the first operator whose result differs from onnxruntime's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from onnx import ModelProto, helper

from fewtune.onnx_graph.external_data import LightModel
from fewtune.onnx_graph.graph import node_text
from fewtune.onnx_graph.session import OnnxruntimeSession
from fewtune.verify.comparison import compare
from fewtune.verify.noise import NoiseMeter
from fewtune.verify.values import Value, known_values

# Values compared in one run: each becomes an output, and prevents the fusion of two operators.
_AT_ONCE = 24
_Run = Callable[[LightModel, dict[str, np.ndarray]], Sequence[np.ndarray]]


def locate(
    model: LightModel, feeds: dict[str, np.ndarray], run: _Run, threads: int, seed: int = 0
) -> str:
    """Find the first node in graph order whose output exceeds its allowance.

    ``feeds`` are inputs on which the outputs differ. ``run`` compiles a model, which has other
    outputs than ``model``, and runs it. The text names the operator, its node and the difference,
    as a part of a sentence. If no value differs, it says that the difference is gone when
    intermediate values are outputs.
    """
    values = known_values(model.model)
    nodes = [
        node
        for node in model.model.graph.node
        if node.output and node.output[0] in values and node.op_type != "Constant"
    ]
    low, high = 0, len(nodes)
    found = ""
    while True:
        # At most `_AT_ONCE`, the last one among them.
        spread = np.linspace(low, high - 1, min(_AT_ONCE, high - low))
        places = sorted({int(place) for place in spread.round()})
        looked = [nodes[place] for place in places]
        opened = with_outputs(model, [node.output[0] for node in looked], values)
        texts = _differences(opened, feeds, run, threads, seed)
        bad = next((n for n, text in enumerate(texts) if text), None)
        if bad is None:
            break
        node = looked[bad]
        found = f"{node_text(node)}: {texts[bad]}"
        low, high = places[bad - 1] + 1 if bad else low, places[bad]
        if low >= high:
            break
    if not found:
        return (
            "no operator alone: with the values between the operators kept, all of them agree, "
            "so the difference comes of operators that are fused or of the layout"
        )
    return f"{found}; what it reads agrees"


def with_outputs(model: LightModel, names: Sequence[str], values: dict[str, Value]) -> LightModel:
    """A copy of a model with these outputs instead of its own; weights are shared."""
    opened = ModelProto()
    opened.CopyFrom(model.model)
    del opened.graph.output[:]
    for name in names:
        shape, element_type = values[name]
        opened.graph.output.append(helper.make_tensor_value_info(name, element_type, shape))
    return LightModel(opened, model.arrays)


def _differences(
    opened: LightModel, feeds: dict[str, np.ndarray], run: _Run, threads: int, seed: int
) -> list[str]:
    """The difference of each output; empty if it is within its allowance."""
    outputs = [np.asarray(each) for each in OnnxruntimeSession(opened, threads).run(feeds)]
    other = OnnxruntimeSession(opened, threads, optimised=False).run(feeds)
    expected = NoiseMeter(opened, threads).expected(feeds, outputs, seed, other)
    texts = []
    for actual, each in zip(run(opened, feeds), expected, strict=True):
        found = compare(np.asarray(actual), each)
        texts.append(found.text.replace("output", "its value", 1) if found.allowances > 1 else "")
    return texts

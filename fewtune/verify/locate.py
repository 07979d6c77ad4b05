"""Finds the first operator whose result differs from onnxruntime's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

import numpy as np
from onnx import ModelProto, helper

from fewtune.onnx_graph.external_data import LightModel
from fewtune.onnx_graph.graph import node_text
from fewtune.onnx_graph.session import OnnxruntimeSession
from fewtune.verify.comparison import compare
from fewtune.verify.noise import NoiseMeter
from fewtune.verify.values import Value, known_values

# Most elements of all values that are computed at once: 512 MiB of float32.
MOST_COMPUTED = 2**27
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
    writers = {n.output[0]: n for n in model.model.graph.node if n.op_type != "Constant"}
    names = smallest({n: values[n] for n in writers if n in values}, MOST_COMPUTED)
    opened = with_outputs(model, names, values)
    outputs = [np.asarray(each) for each in OnnxruntimeSession(opened, threads).run(feeds)]
    other = OnnxruntimeSession(opened, threads, optimised=False).run(feeds)
    expected = NoiseMeter(opened, threads).expected(feeds, outputs, seed, other)
    for name, actual, each in zip(names, run(opened, feeds), expected, strict=True):
        found = compare(np.asarray(actual), each, kind="its value")
        if found.allowances > 1:
            return f"{node_text(writers[name])}: {found.text}; what it reads agrees"
    return (
        "no operator alone: with the values between the operators kept, all of them agree, so the "
        "difference comes of operators that are fused or of the layout"
    )


def smallest(values: Mapping[str, Value], most: int) -> list[str]:
    """The smallest values that fit ``most`` elements, in the given order."""
    sizes = {name: prod(value.shape) for name, value in values.items()}
    taken, left = set(), most
    for name in sorted(sizes, key=lambda each: sizes[each]):
        if sizes[name] > left:
            break
        taken.add(name)
        left -= sizes[name]
    return [name for name in values if name in taken]


def with_outputs(model: LightModel, names: Sequence[str], values: dict[str, Value]) -> LightModel:
    """A copy of a model with these outputs instead of its own; weights are shared."""
    opened = ModelProto()
    opened.CopyFrom(model.model)
    del opened.graph.output[:]
    for name in names:
        shape, element_type = values[name]
        opened.graph.output.append(helper.make_tensor_value_info(name, element_type, shape))
    return LightModel(opened, model.arrays)

"""Draws of a model's inputs: what a check feeds, each value within what its use allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from onnx import ModelProto, NodeProto

from fewtune.artifacts import TensorSpec
from fewtune.verify.comparison import is_byte
from fewtune.verify.values import Value, known_values

# The user's own inputs.
GIVEN = "given inputs"

# Floats of each draw. The first is what a normalised image or a latent looks like; the others
# reach what it does not: sums that do not cancel, logarithms, square roots.
_FLOATS = {
    "normal inputs": lambda generator, shape: generator.standard_normal(shape),
    "inputs uniform in 0 to 1": lambda generator, shape: generator.random(shape),
    "positive inputs": lambda generator, shape: np.exp(generator.standard_normal(shape)),
}
# What hands its inputs on with the values they have.
_HANDS_ON = frozenset(
    {"Cast", "Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice"}
    | {"Concat", "Expand", "Tile", "Split", "Clip", "Max", "Min"}
)
# Their second input holds places along one axis of the first, or tuples of places.
_ALONG_AXIS = frozenset({"Gather", "GatherElements", "Scatter", "ScatterElements"})
_BY_TUPLES = frozenset({"GatherND", "ScatterND"})
_MOST_STEPS = 64


class Draw(NamedTuple):
    """One set of inputs.

    Attributes
    ----------
    name : str
        As a message names it, such as ``normal inputs``.
    feeds : dict of arrays
        By the name of the input.
    """

    name: str
    feeds: dict[str, np.ndarray]


def drawn_inputs(model: ModelProto, specs: Sequence[TensorSpec], seed: int) -> list[Draw]:
    """Draw the inputs of a model several times.

    Parameters
    ----------
    model : ModelProto
        With static shapes: its operators say what integers may be.
    specs : sequence of TensorSpec
        The inputs.
    seed : int

    Returns
    -------
    draws : list of Draw
        Floats normal, uniform in 0 to 1, and positive (the exponential of normal ones). Integers
        lie within the rows that a Gather reads or a Scatter writes by them, or are 0 and 1 where
        nothing is known; in the second draw these are all 1, as a mask of full length is. A model
        without floats has no third draw.
    """
    limits = integer_limits(model)
    has_floats = any(np.dtype(spec.dtype).kind == "f" for spec in specs)
    names = list(_FLOATS) if has_floats else ["random integers", "integers with full masks"]
    draws = []
    for number, name in enumerate(names):
        generator = np.random.default_rng([seed, number])
        feeds = {}
        for spec in specs:
            dtype = np.dtype(spec.dtype)
            if dtype.kind == "f":
                values = _FLOATS[name](generator, tuple(spec.shape))
            else:
                values = _integers(generator, spec, limits.get(spec.name), full=number == 1)
            feeds[spec.name] = np.asarray(values).astype(dtype)
        draws.append(Draw(name, feeds))
    return draws


def _integers(
    generator: np.random.Generator, spec: TensorSpec, limit: int | None, full: bool
) -> np.ndarray:
    dtype = np.dtype(spec.dtype)
    if limit is not None:
        return generator.integers(0, max(1, limit), spec.shape)
    if is_byte(dtype):
        return generator.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, spec.shape)
    return np.ones(spec.shape) if full else generator.integers(0, 2, spec.shape)


def integer_limits(model: ModelProto) -> dict[str, int]:
    """Rows of the smallest table that each input is a place in: its values must stay below.

    Looks through casts, reshapes and the like. Inputs that index nothing are not in it.
    """
    readers: dict[str, list[tuple[NodeProto, int]]] = {}
    for node in model.graph.node:
        for position, name in enumerate(node.input):
            readers.setdefault(name, []).append((node, position))
    values = known_values(model)
    limits: dict[str, int] = {}
    for value in model.graph.input:
        found = _rows_read(value.name, readers, values)
        if found:
            limits[value.name] = min(found)
    return limits


def _rows_read(
    name: str,
    readers: Mapping[str, list[tuple[NodeProto, int]]],
    values: Mapping[str, Value],
) -> list[int]:
    rows, pending, seen = [], [name], {name}
    while pending and len(seen) < _MOST_STEPS:
        for node, position in readers.get(pending.pop(), []):
            shape = values[node.input[0]].shape if node.input[0] in values else []
            if node.op_type in _ALONG_AXIS and position == 1 and shape:
                rows.append(shape[_number(node, "axis")])
            elif node.op_type in _BY_TUPLES and position == 1 and shape:
                first, indices = _number(node, "batch_dims"), values.get(node.input[1])
                if indices is not None:
                    rows.append(min(shape[first : first + indices.shape[-1]]))
            elif node.op_type == "OneHot" and position == 0:
                continue
            elif node.op_type in ("LSTM", "GRU", "RNN") and position == 4:
                rows += [shape[0] + 1] if shape else []
            elif _hands_on(node, position):
                fresh = [output for output in node.output if output not in seen]
                seen.update(fresh)
                pending += fresh
    return rows


def _hands_on(node: NodeProto, position: int) -> bool:
    """Whether a node's outputs hold values of the input at this position."""
    if node.op_type in _ALONG_AXIS | _BY_TUPLES:
        return position == 0
    if node.op_type == "Where":
        return position > 0
    return node.op_type in _HANDS_ON


def _number(node: NodeProto, name: str) -> int:
    return next((each.i for each in node.attribute if each.name == name), 0)

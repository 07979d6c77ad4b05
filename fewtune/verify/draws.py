"""Draws of a model's inputs for verification, each value within the range that its use allows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto

from fewtune.artifacts import TensorSpec
from fewtune.verify.comparison import is_byte
from fewtune.verify.jitter import INTEGERS, SHAPE_ONLY
from fewtune.verify.values import Value, known_values

# The user's own inputs.
GIVEN = "given inputs"

# Floats of each draw. The first is like a normalised image. The others reach what it does not: sums
# that do not cancel, logarithms, square roots.
_FLOATS = {
    "normal inputs": lambda generator, shape: generator.standard_normal(shape),
    "inputs uniform in 0 to 1": lambda generator, shape: generator.random(shape),
    "positive inputs": lambda generator, shape: np.exp(generator.standard_normal(shape)),
}
# Operators whose outputs hold values of their inputs.
_PASSES_ON = frozenset(
    {"Cast", "Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice"}
    | {"Concat", "Expand", "Tile", "Split", "Clip", "Max", "Min"}
)
# Operators whose second input indexes one axis of the first, or holds tuples of indices.
_ALONG_AXIS = frozenset({"Gather", "GatherElements", "Scatter", "ScatterElements"})
_BY_TUPLES = frozenset({"GatherND", "ScatterND"})
# Arithmetic operators: their inputs are not masks.
_COMPUTES = frozenset({"Add", "Conv", "Cos", "Div", "Gemm", "MatMul", "Mul", "Sin", "Sqrt"})
_COMPARES = frozenset({"Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
_WIDEST = 7


class _Read(NamedTuple):
    """A node, the number of one of its inputs, and whether that holds floats."""

    node: NodeProto
    position: int
    is_float: bool


class Draw(NamedTuple):
    """One set of inputs by name, with a name for messages, such as ``normal inputs``."""

    name: str
    feeds: dict[str, np.ndarray]


def drawn_inputs(model: ModelProto, specs: Sequence[TensorSpec], seed: int) -> list[Draw]:
    """Draw the inputs of a model with static shapes several times.

    In three draws, floats are normal, uniform in 0 to 1, and positive (exponentials of normal
    ones). Integers that index an axis are below its extent. Other integers are 0 or 1, and all 1 in
    the second draw, like a mask of full length. In the third draw, integers that the model only
    computes with, such as steps, lengths and pixels, reach 127. A model without floats and without
    such integers has no third draw.
    """
    limits, arithmetic = integer_limits(model), _arithmetic_inputs(model)
    has_floats = any(np.dtype(spec.dtype).kind == "f" for spec in specs)
    names = list(_FLOATS) if has_floats else ["random integers", "integers with full masks"]
    if not has_floats and arithmetic - limits.keys():
        names.append("integers up to 127")
    draws = []
    for number, name in enumerate(names):
        generator = np.random.default_rng([seed, number])
        feeds = {}
        for spec in specs:
            dtype = np.dtype(spec.dtype)
            if number == 2 and spec.name in arithmetic - limits.keys():
                values = _wide_integers(generator, spec)
            elif dtype.kind == "f":
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


def _wide_integers(generator: np.random.Generator, spec: TensorSpec) -> np.ndarray:
    """Integers up to 127, many of them small: with large lengths alone no mask would cut off."""
    most = 2 ** generator.integers(1, _WIDEST + 1, spec.shape)
    return np.floor(generator.random(spec.shape) * most)


def _arithmetic_inputs(model: ModelProto) -> set[str]:
    """Inputs of 16 bits or more that are only used in float arithmetic and comparisons."""
    readers = _readers(model)
    wide = INTEGERS - {TensorProto.BOOL, TensorProto.INT8, TensorProto.UINT8}
    return {
        value.name
        for value in model.graph.input
        if value.type.tensor_type.elem_type in wide and _is_arithmetic(_reads(value.name, readers))
    }


def _is_arithmetic(reads: Iterable[_Read]) -> bool:
    is_read = False
    for node, position, is_float in reads:
        is_mask = node.op_type == "Cast" and _number(node, "to") == TensorProto.BOOL
        if node.op_type in SHAPE_ONLY or (_passes_on(node, position) and not is_mask):
            continue
        # Sums of integers may be indices of a table, such as words with an offset.
        computes = node.op_type in _COMPUTES or (node.op_type == "Sub" and position == 0)
        if not (computes and is_float) and node.op_type not in _COMPARES:
            return False
        is_read = True
    return is_read


def _readers(model: ModelProto) -> dict[str, list[tuple[NodeProto, int]]]:
    readers: dict[str, list[tuple[NodeProto, int]]] = {}
    for node in model.graph.node:
        for position, name in enumerate(node.input):
            readers.setdefault(name, []).append((node, position))
    return readers


def _reads(name: str, readers: Mapping[str, list[tuple[NodeProto, int]]]) -> Iterator[_Read]:
    """Nodes that read a value, or values of it that casts, reshapes and the like pass on."""
    pending, seen = [(name, False)], {name}
    while pending:
        value, is_float = pending.pop()
        for node, position in readers.get(value, []):
            yield _Read(node, position, is_float)
            if _passes_on(node, position):
                to_float = node.op_type == "Cast" and _number(node, "to") not in INTEGERS
                fresh = [output for output in node.output if output not in seen]
                seen.update(fresh)
                pending += [(output, is_float or to_float) for output in fresh]


def integer_limits(model: ModelProto) -> dict[str, int]:
    """Extent of the smallest axis that each input indexes: its values must be below.

    Inputs that index nothing are left out.
    """
    readers, values = _readers(model), known_values(model)
    limits: dict[str, int] = {}
    for value in model.graph.input:
        reads = _reads(value.name, readers)
        rows = [_rows(node, position, values) for node, position, _ in reads]
        found = [each for each in rows if each is not None]
        if found:
            limits[value.name] = min(found)
    return limits


def _rows(node: NodeProto, position: int, values: Mapping[str, Value]) -> int | None:
    """Extent of the axis that a node's input at this position indexes."""
    shape = values[node.input[0]].shape if node.input[0] in values else []
    if not shape:
        return None
    if node.op_type in _ALONG_AXIS and position == 1:
        return shape[_number(node, "axis")]
    if node.op_type in _BY_TUPLES and position == 1 and node.input[1] in values:
        first = _number(node, "batch_dims")
        return min(shape[first : first + values[node.input[1]].shape[-1]])
    if node.op_type == "RoiAlign" and position == 2:
        return shape[0]
    if node.op_type in ("LSTM", "GRU", "RNN") and position == 4:
        return shape[0] + 1
    return None


def _passes_on(node: NodeProto, position: int) -> bool:
    """Whether a node's outputs hold values of its input at this position."""
    if node.op_type in _ALONG_AXIS | _BY_TUPLES:
        return position == 0
    if node.op_type == "Where":
        return position > 0
    return node.op_type in _PASSES_ON


def _number(node: NodeProto, name: str) -> int:
    return next((each.i for each in node.attribute if each.name == name), 0)

"""Draws of a model's inputs for verification, each value within the range that its use allows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from fewtune.artifacts import TensorSpec
from fewtune.onnx_graph.graph import attributes_of
from fewtune.verify.comparison import is_byte
from fewtune.verify.reference import Draw
from fewtune.verify.values import Value, known_values

# Operators whose outputs hold every value of their inputs, or a part of them.
_HOLDS = frozenset(
    {"Cast", "Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice"}
    | {"Concat", "Expand", "Tile", "Split", "Gather", "GatherElements", "GatherND"}
)
# The same if their other inputs let them.
_CHOOSES = frozenset({"Clip", "Max", "Min", "Where"})
# Operators whose second input indexes one axis of the first, or holds tuples of indices.
_ALONG_AXIS = frozenset({"Gather", "GatherElements", "Scatter", "ScatterElements"})
_BY_TUPLES = frozenset({"GatherND", "ScatterND"})


class _Held(NamedTuple):
    """Values of an input that another value holds: all or some, moved by constants."""

    is_whole: bool = True
    least: int = 0
    most: int = 0


def index_limits(model: ModelProto, is_certain: bool = True) -> dict[str, tuple[int, int]]:
    """The lowest and the highest value of each integer input that indexes a table.

    Parameters
    ----------
    model : ModelProto
        Static shapes, simplified.
    is_certain : bool
        Whether only inputs count of which every value must be within: one that is clipped before
        it indexes may have any value. Otherwise the limits are such that nothing is clipped.

    Returns
    -------
    limits : dict
        Inputs that index nothing are left out.
    """
    integers = [v.name for v in model.graph.input if _is_integer(v.type.tensor_type.elem_type)]
    if not integers:
        # Most models have images: their shapes need not be inferred for this.
        return {}
    values, tensors = known_values(model), {each.name: each for each in model.graph.initializer}
    held = {name: {name: _Held()} for name in integers}
    limits: dict[str, tuple[int, int]] = {}
    for node in model.graph.node:
        for position, name in enumerate(node.input):
            for source, each in held.get(name, {}).items():
                found = _range(node, position, values)
                if found is not None and (each.is_whole or not is_certain):
                    lowest, highest = found[0] - each.least, found[1] - each.most
                    known = limits.get(source, (lowest, highest))
                    limits[source] = max(lowest, known[0]), min(highest, known[1])
                passed = _passed_on(each, node, position, tensors)
                if passed is not None:
                    for output in node.output:
                        held.setdefault(output, {}).setdefault(source, passed)
    return limits


def _passed_on(
    held: _Held, node: NodeProto, position: int, tensors: Mapping[str, TensorProto]
) -> _Held | None:
    """What a node's outputs hold of what its input at this position does."""
    if node.op_type in ("Add", "Sub"):
        other = tensors.get(node.input[1 - position])
        if other is None or not _is_integer(other.data_type):
            return None
        if node.op_type == "Sub" and position == 1:
            return None
        added = numpy_helper.to_array(other).astype(np.int64).reshape(-1)
        added = -added if node.op_type == "Sub" else added
        least, most = int(added.min(initial=0)), int(added.max(initial=0))
        return _Held(held.is_whole, held.least + least, held.most + most)
    is_index = node.op_type in _ALONG_AXIS | _BY_TUPLES and position > 0
    if is_index or (node.op_type == "Where" and position == 0):
        return None
    if node.op_type in _CHOOSES:
        return held._replace(is_whole=False)
    return held if node.op_type in _HOLDS else None


def _is_integer(element_type: int) -> bool:
    return helper.tensor_dtype_to_np_dtype(element_type).kind in "biu"


def _range(node: NodeProto, position: int, values: Mapping[str, Value]) -> tuple[int, int] | None:
    """The indices that a node takes at this position; None if it reads none there."""
    shape = values[node.input[0]].shape if node.input[0] in values else []
    if not shape:
        return None
    given = attributes_of(node)
    if node.op_type in _ALONG_AXIS and position == 1:
        extent = shape[given.get("axis", 0)]
        return -extent, extent - 1
    if node.op_type in _BY_TUPLES and position == 1 and node.input[1] in values:
        first = given.get("batch_dims", 0)
        extent = min(shape[first : first + values[node.input[1]].shape[-1]])
        return -extent, extent - 1
    if node.op_type in ("LSTM", "GRU", "RNN") and position == 4:
        return 0, shape[0]
    return None


# The user's own inputs.
GIVEN = "given inputs"

# Floats of each draw. The first is like a normalised image. The others reach what it does not: sums
# that do not cancel, logarithms, square roots.
_FLOATS = {
    "normal inputs": lambda generator, shape: generator.standard_normal(shape),
    "inputs uniform in 0 to 1": lambda generator, shape: generator.random(shape),
    "positive inputs": lambda generator, shape: np.exp(generator.standard_normal(shape)),
}
# Inputs that models seldom get. A library that differs from onnxruntime on one of the last three is
# not refused: onnxruntime itself loses digits far from zero, and its Relu makes zeros of NaN;
# Winograd's transforms spread what is infinite or huge over a tile. The user is told.
LIMITS, LARGER = "integers at their limits", "larger integers"
_RARE: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "inputs far from zero": lambda array: array + array.dtype.type(300.0),
    "one huge element": lambda array: _with_one(array, 1e6),
    "one infinite element": lambda array: _with_one(array, np.inf),
}
# Shifts at the widths of their types, and beyond; numbers such as steps and lengths.
_SHIFTS, _COUNTS = (0, 1, 7, 8, 15, 16, 31, 32, 63, 64, 255), (100, 3, 0, 31, 127, 1, 12)


def drawn_inputs(model: ModelProto, specs: Sequence[TensorSpec], seed: int) -> list[Draw]:
    """Draw the inputs of a model with static shapes several times.

    In three draws, floats are normal, uniform in 0 to 1, and positive (exponentials of normal
    ones). Integers that index an axis are below its extent. Other integers are 0 or 1, and all 1 in
    the second draw, like a mask of full length. A model without floats has no third draw.
    """
    limits = index_limits(model, is_certain=False)
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


def rare_inputs(model: ModelProto, specs: Sequence[TensorSpec], usual: Draw) -> list[Draw]:
    """Inputs that models seldom get, made of a usual draw.

    Indices and unsigned integers are at their limits, or other integers are larger than usual, or
    floats are far from zero, or one element of each input of floats is huge or infinite.
    """
    limits, feeds = index_limits(model, is_certain=False), usual.feeds
    floats = [spec.name for spec in specs if np.dtype(spec.dtype).kind == "f"]
    changed: dict[str, dict[str, np.ndarray]] = {}
    for spec in specs:
        dtype = np.dtype(spec.dtype)
        if dtype.kind not in "iu":
            continue
        is_larger = dtype.kind == "i" and spec.name not in limits
        name = LARGER if is_larger else LIMITS
        values = limits.get(spec.name, _COUNTS if is_larger else _SHIFTS)
        info = np.iinfo(dtype)
        within = np.array([each for each in values if info.min <= each <= info.max], dtype)
        changed.setdefault(name, {})[spec.name] = np.resize(within, spec.shape)
    draws = [Draw(name, feeds | each) for name, each in changed.items()]
    for name, change in _RARE.items() if floats else ():
        draws.append(Draw(name, feeds | {each: change(feeds[each]) for each in floats}))
    return draws


def _with_one(array: np.ndarray, number: float) -> np.ndarray:
    changed = array.copy()
    with np.errstate(over="ignore"):
        changed.reshape(-1)[changed.size // 2 : changed.size // 2 + 1] = number
    return changed


def _integers(
    generator: np.random.Generator, spec: TensorSpec, limit: tuple[int, int] | None, full: bool
) -> np.ndarray:
    dtype = np.dtype(spec.dtype)
    if limit is not None:
        lowest, highest = max(0, limit[0]), limit[1]
        return generator.integers(lowest, max(lowest, highest) + 1, spec.shape)
    if is_byte(dtype):
        return generator.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, spec.shape)
    return np.ones(spec.shape) if full else generator.integers(0, 2, spec.shape)

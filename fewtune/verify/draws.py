"""Draws of a model's inputs for verification, each value within the range that its use allows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from onnx import ModelProto, TensorProto

from fewtune.artifacts import TensorSpec
from fewtune.onnx_graph.graph import attributes_of
from fewtune.verify.comparison import is_byte
from fewtune.verify.indices import INTEGERS, Read, Readers, index_limits, passes_on
from fewtune.verify.jitter import SHAPE_ONLY

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
LIMITS = "integers at their limits"
_FAR = "inputs far from zero"
_ONE = {"one huge element": 1e6, "one infinite element": np.inf}
_OFFSET = 300.0
# Shifts at the widths of their types, and beyond.
_SHIFTS = (0, 1, 7, 8, 15, 16, 31, 32, 63, 64, 255)
# Arithmetic operators: their inputs are not masks.
_COMPUTES = frozenset({"Add", "Conv", "Cos", "Div", "Gemm", "MatMul", "Mul", "Sin", "Sqrt"})
_COMPARES = frozenset({"Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
_WIDEST = 7


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
    limits, arithmetic = index_limits(model, is_certain=False), _arithmetic_inputs(model)
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


def rare_inputs(model: ModelProto, specs: Sequence[TensorSpec], usual: Draw) -> list[Draw]:
    """Inputs that models seldom get, made of a usual draw.

    Indices and unsigned integers are at their limits, or floats are far from zero, or one element
    of each input of floats is huge or infinite.
    """
    limits, feeds = index_limits(model, is_certain=False), usual.feeds
    floats = [spec.name for spec in specs if np.dtype(spec.dtype).kind == "f"]
    ends = {
        spec.name: _ends(np.dtype(spec.dtype), limits.get(spec.name))
        for spec in specs
        if spec.name in limits or np.dtype(spec.dtype).kind == "u"
    }
    changed = {name: np.resize(each, feeds[name].shape) for name, each in ends.items()}
    draws = [Draw(LIMITS, feeds | changed)] if changed else []
    if floats:
        draws.append(
            Draw(
                _FAR,
                feeds | {name: feeds[name] + feeds[name].dtype.type(_OFFSET) for name in floats},
            )
        )
    for name, number in _ONE.items() if floats else ():
        draws.append(Draw(name, feeds | {each: _with_one(feeds[each], number) for each in floats}))
    return draws


def _ends(dtype: np.dtype, limits: tuple[int, int] | None) -> np.ndarray:
    info = np.iinfo(dtype)
    ends = _SHIFTS if limits is None else limits
    return np.array([each for each in ends if info.min <= each <= info.max], dtype)


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


def _wide_integers(generator: np.random.Generator, spec: TensorSpec) -> np.ndarray:
    """Integers up to 127, many of them small: with large lengths alone no mask would cut off."""
    most = 2 ** generator.integers(1, _WIDEST + 1, spec.shape)
    return np.floor(generator.random(spec.shape) * most)


def _arithmetic_inputs(model: ModelProto) -> set[str]:
    """Inputs of 16 bits or more that are only used in float arithmetic and comparisons."""
    readers = Readers(model)
    wide = INTEGERS - {TensorProto.BOOL, TensorProto.INT8, TensorProto.UINT8}
    return {
        value.name
        for value in model.graph.input
        if value.type.tensor_type.elem_type in wide and _is_arithmetic(readers.reads(value.name))
    }


def _is_arithmetic(reads: Iterable[Read]) -> bool:
    is_read = False
    for node, position, is_float, *_ in reads:
        is_mask = node.op_type == "Cast" and attributes_of(node)["to"] == TensorProto.BOOL
        if node.op_type in SHAPE_ONLY or (passes_on(node, position) and not is_mask):
            continue
        # Sums of integers may be indices of a table, such as words with an offset.
        computes = node.op_type in _COMPUTES or (node.op_type == "Sub" and position == 0)
        if not (computes and is_float) and node.op_type not in _COMPARES:
            return False
        is_read = True
    return is_read

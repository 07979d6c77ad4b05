"""Draws of a model's inputs for verification, each value within the range that its use allows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from fewtune.artifacts import TensorSpec
from fewtune.onnx_graph.graph import attributes_of
from fewtune.verify.comparison import is_byte
from fewtune.verify.reference import Draw
from fewtune.verify.session import Value, known_values

INTEGERS = frozenset(
    {TensorProto.BOOL, TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64}
    | {TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64}
)
# Operators whose outputs hold every value of their inputs, or a part of them.
_HOLDS = frozenset(
    {"Cast", "Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice"}
    | {"Concat", "Expand", "Tile", "Split", "Gather", "GatherElements", "GatherND"}
)
# The same if their other inputs let them.
_CHOOSES = frozenset({"Clip", "Max", "Min"})
# Operators whose second input indexes one axis of the first, or holds tuples of indices.
_ALONG_AXIS = frozenset({"Gather", "GatherElements", "Scatter", "ScatterElements"})
_BY_TUPLES = frozenset({"GatherND", "ScatterND"})


class Read(NamedTuple):
    """A node that reads a value, or values of it that others pass on.

    Attributes
    ----------
    node : NodeProto
    position : int
        Number of the input.
    is_float : bool
        Whether the input holds floats by then.
    is_whole : bool
        Whether every value that is read gets there; Clip, Where and the like keep some back.
    shift : tuple of int
        The least and the most that constants have added to a value.
    """

    node: NodeProto
    position: int
    is_float: bool = False
    is_whole: bool = True
    shift: tuple[int, int] = (0, 0)


class Readers:
    """Finds the nodes that read a value of a model."""

    def __init__(self, model: ModelProto) -> None:
        self._readers: dict[str, list[tuple[NodeProto, int]]] = {}
        for node in model.graph.node:
            for position, name in enumerate(node.input):
                self._readers.setdefault(name, []).append((node, position))
        self._tensors = {tensor.name: tensor for tensor in model.graph.initializer}

    def reads(self, name: str) -> Iterator[Read]:
        """Nodes that read a value, or values of it that casts, reshapes and the like pass on."""
        pending = [(name, Read(NodeProto(), 0))]
        seen = {name}
        while pending:
            value, before = pending.pop()
            for node, position in self._readers.get(value, []):
                read = before._replace(node=node, position=position)
                yield read
                passed = self._passed_on(read)
                if passed is not None:
                    fresh = [output for output in node.output if output not in seen]
                    seen.update(fresh)
                    pending += [(output, passed) for output in fresh]

    def _passed_on(self, read: Read) -> Read | None:
        node, position, is_float, is_whole, (least, most) = read
        if not is_float and node.op_type in ("Add", "Sub"):
            other = self._tensors.get(node.input[1 - position])
            if other is None or (node.op_type == "Sub" and position == 1):
                return None
            added = numpy_helper.to_array(other).astype(np.int64).reshape(-1)
            added = -added if node.op_type == "Sub" else added
            shift = least + int(added.min(initial=0)), most + int(added.max(initial=0))
            return read._replace(shift=shift)
        if not passes_on(node, position):
            return None
        to_float = node.op_type == "Cast" and attributes_of(node)["to"] not in INTEGERS
        is_whole = is_whole and node.op_type in _HOLDS
        return read._replace(is_float=is_float or to_float, is_whole=is_whole)


def passes_on(node: NodeProto, position: int) -> bool:
    """Whether a node's outputs hold values of its input at this position."""
    if node.op_type in _ALONG_AXIS | _BY_TUPLES:
        return position == 0
    if node.op_type == "Where":
        return position > 0
    return node.op_type in _HOLDS | _CHOOSES


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
    integers = [v for v in model.graph.input if v.type.tensor_type.elem_type in INTEGERS]
    if not integers:
        # Most models have images: their shapes need not be inferred for this.
        return {}
    readers, values = Readers(model), known_values(model)
    limits: dict[str, tuple[int, int]] = {}
    for value in integers:
        for read in readers.reads(value.name):
            found = _range(read.node, read.position, values)
            if found is None or (is_certain and not read.is_whole):
                continue
            lowest, highest = found[0] - read.shift[0], found[1] - read.shift[1]
            known = limits.get(value.name, (lowest, highest))
            limits[value.name] = max(lowest, known[0]), min(highest, known[1])
    return limits


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
LIMITS = "integers at their limits"
_RARE: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "inputs far from zero": lambda array: array + array.dtype.type(300.0),
    "one huge element": lambda array: _with_one(array, 1e6),
    "one infinite element": lambda array: _with_one(array, np.inf),
}
# Shifts at the widths of their types, and beyond.
_SHIFTS = (0, 1, 7, 8, 15, 16, 31, 32, 63, 64, 255)
# Arithmetic operators: their inputs are not masks.
_COMPUTES = frozenset({"Add", "Conv", "Cos", "Div", "Gemm", "MatMul", "Mul", "Sin", "Sqrt"})
_COMPARES = frozenset({"Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
# Operators that read only the shape of their input.
_SHAPE_ONLY = frozenset({"Shape", "Size", "ConstantOfShape"})
_WIDEST = 7


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
    for name, change in _RARE.items() if floats else ():
        draws.append(Draw(name, feeds | {each: change(feeds[each]) for each in floats}))
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
        if node.op_type in _SHAPE_ONLY or (passes_on(node, position) and not is_mask):
            continue
        # Sums of integers may be indices of a table, such as words with an offset.
        computes = node.op_type in _COMPUTES or (node.op_type == "Sub" and position == 0)
        if not (computes and is_float) and node.op_type not in _COMPARES:
            return False
        is_read = True
    return is_read

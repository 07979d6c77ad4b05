"""Integer inputs that index a table inside the model, and the values that they may have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from fewtune.onnx_graph.graph import attributes_of
from fewtune.verify.values import Value, known_values

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


# The last three of a read.
_State = tuple[bool, bool, tuple[int, int]]


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
        pending: list[tuple[str, _State]] = [(name, (False, True, (0, 0)))]
        seen = {name}
        while pending:
            value, state = pending.pop()
            for node, position in self._readers.get(value, []):
                read = Read(node, position, *state)
                yield read
                further = self._passed_on(read)
                if further is not None:
                    fresh = [output for output in node.output if output not in seen]
                    seen.update(fresh)
                    pending += [(output, further) for output in fresh]

    def _passed_on(self, read: Read) -> _State | None:
        node, _, is_float, is_whole, (least, most) = read
        if not is_float and node.op_type in ("Add", "Sub"):
            other = self._tensors.get(node.input[1 - read.position])
            if other is None or (node.op_type == "Sub" and read.position == 1):
                return None
            added = numpy_helper.to_array(other).astype(np.int64).reshape(-1)
            added = -added if node.op_type == "Sub" else added
            shift = least + int(added.min(initial=0)), most + int(added.max(initial=0))
            return is_float, is_whole, shift
        if not passes_on(node, read.position):
            return None
        to_float = node.op_type == "Cast" and attributes_of(node)["to"] not in INTEGERS
        return is_float or to_float, is_whole and node.op_type in _HOLDS, read.shift


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
    if node.op_type == "RoiAlign" and position == 2:
        return 0, shape[0] - 1
    if node.op_type in ("LSTM", "GRU", "RNN") and position == 4:
        return 0, shape[0]
    return None

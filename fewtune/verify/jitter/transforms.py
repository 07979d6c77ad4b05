"""Fourier transforms: what rounding moves a number by is a part of the whole line's size.

Each number of a transform is a sum over the line. Where the terms cancel, as in the imaginary part
of a real signal's mean, nothing is left that could move by a part of itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from onnx import ModelProto, NodeProto, helper, numpy_helper

TRANSFORMS = frozenset({"DFT", "STFT"})
# Of an STFT: batch, frame, frequency, and the two parts of a number.
_FREQUENCY = 2
# The input that names the axis, from this operator set on.
_AXIS, _AXIS_IS_INPUT = 2, 20


def has_transforms(model: ModelProto) -> bool:
    """Whether a model has a Fourier transform in its outer graph."""
    return any(node.op_type in TRANSFORMS for node in model.graph.node)


def line_axes(
    node: NodeProto, rank: int, constants: Mapping[str, np.ndarray], opset: int
) -> list[int]:
    """The axes over which a transform's output is one line: frequencies, and parts of numbers.

    Parameters
    ----------
    node : NodeProto
        Of `TRANSFORMS`.
    rank : int
        Of its output.
    constants : mapping of str to array
        Where the node may find its axis.
    opset : int
        Of ONNX's operators: the axis is an attribute before 20, and another one unless given.
    """
    axis = 1 if opset < _AXIS_IS_INPUT else -2
    if node.op_type == "STFT":
        axis = _FREQUENCY
    elif opset < _AXIS_IS_INPUT:
        axis = next((each.i for each in node.attribute if each.name == "axis"), axis)
    elif len(node.input) > _AXIS and node.input[_AXIS] in constants:
        axis = int(constants[node.input[_AXIS]].item())
    return sorted({axis % rank, rank - 1})


def with_size_term(
    exact: str, moved: str, term: str, axes: Sequence[int], result: str
) -> list[NodeProto]:
    """Nodes that add to a value a term times the size of its lines.

    Parameters
    ----------
    exact, moved : str
        The value as it was computed, whose size counts, and as it is moved already.
    term : str
    axes : sequence of int
        Of a line.
    result : str
    """
    over, square, total, size, shift = (
        f"{result}/{part}" for part in ("line", "square", "total", "size", "shift")
    )
    return [
        helper.make_node("Constant", [], [over], value=numpy_helper.from_array(np.array(axes))),
        helper.make_node("Mul", [exact, exact], [square]),
        helper.make_node("ReduceSum", [square, over], [total], keepdims=1),
        helper.make_node("Sqrt", [total], [size]),
        helper.make_node("Mul", [term, size], [shift]),
        helper.make_node("Add", [moved, shift], [result]),
    ]

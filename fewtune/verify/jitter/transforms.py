"""Rounding of Fourier transforms, which is relative to the magnitude of a whole line.

Each element of a transform is a sum over the line. If its terms cancel, such as in the imaginary
part of a real signal's mean, the element is near zero, but its error is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from onnx import ModelProto, NodeProto, helper, numpy_helper

TRANSFORMS = frozenset({"DFT", "STFT"})
# Axis of an STFT's output, (batch, frames, frequencies, 2).
_FREQUENCY = 2
# Number of the input that gives the axis, from this operator set on.
_AXIS, _AXIS_IS_INPUT = 2, 20


def has_transforms(model: ModelProto) -> bool:
    """Whether a model's main graph has a Fourier transform."""
    return any(node.op_type in TRANSFORMS for node in model.graph.node)


def line_axes(
    node: NodeProto, rank: int, constants: Mapping[str, np.ndarray], opset: int
) -> list[int]:
    """Axes of a line in a transform's output: that of frequencies, and real and imaginary parts.

    Parameters
    ----------
    node : NodeProto
        Of `TRANSFORMS`.
    rank : int
        Rank of its output.
    constants : mapping of str to array
        Constants of the graph: the axis may be one.
    opset : int
        Before 20, the axis is an attribute, and has another default.

    Returns
    -------
    axes : list of int
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
    """Nodes that add a term times the magnitude of a value's lines.

    Parameters
    ----------
    exact, moved : str
        The value before and after it was moved by factors; the first gives the magnitude.
    term : str
    axes : sequence of int
        Axes of a line.
    result : str
        Name of the sum.
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

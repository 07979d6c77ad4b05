"""Layer normalisations: rounding changes their variance by a part of the mean square.

onnxruntime and TVM compute a row's variance as the mean square less the square of the mean. Where a
row's numbers are nearly equal, the two nearly cancel: their rounding error is then a large part of
the difference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from onnx import NodeProto, helper, numpy_helper

from fewtune.onnx_graph.operators.normalizations import EPSILON

NORMALISATIONS = frozenset({"LayerNormalization"})


def normalised_axes(node: NodeProto, rank: int) -> list[int]:
    """Axes over which a layer normalisation takes its mean and variance."""
    axis = next((each.i for each in node.attribute if each.name == "axis"), -1)
    return list(range(axis % rank, rank))


def with_moved_variance(
    node: NodeProto,
    exact: str,
    moved: str,
    terms: tuple[str, str],
    shape: Sequence[int],
    result: str,
) -> list[NodeProto]:
    """Build the nodes that change a normalised value as a moved variance and mean would.

    Parameters
    ----------
    node : NodeProto
        The layer normalisation that writes ``exact``.
    exact, moved : str
        Names of the computed value, and of the same value after earlier movements.
    terms : pair of str
        Names of one number a row each: half the movement of its variance, in units of its mean
        square, and the movement of its mean, in units of the mean.
    shape : sequence of int
        The value's shape; its type is float32.
    result : str
        Name of the value that the nodes write.

    Returns
    -------
    nodes : list of NodeProto
    """
    axes = normalised_axes(node, len(shape))
    epsilon = next((each.f for each in node.attribute if each.name == "epsilon"), EPSILON)
    written = []

    def constant(values: object, hint: str) -> str:
        array, name = np.asarray(values), f"{result}/{hint}"
        tensor = numpy_helper.from_array(array)
        written.append(helper.make_node("Constant", [], [name], value=tensor))
        return name

    def op(operator: str, part: str, *inputs: str) -> str:
        name = f"{result}/{part}" if part else result
        written.append(helper.make_node(operator, list(inputs), [name]))
        return name

    over = constant(np.array(axes, np.int64), "row")
    share = constant(np.float32(1 / math.prod(shape[axis] for axis in axes)), "share")

    def mean(of: str, part: str) -> str:
        return op("Mul", part, op("ReduceSum", f"{part}_total", of, over), share)

    middle = mean(node.input[0], "middle")
    apart = op("Sub", "apart", node.input[0], middle)
    variance = mean(op("Mul", "apart_square", apart, apart), "variance")
    square = op("Add", "square", variance, op("Mul", "middle_square", middle, middle))
    divisor = op("Add", "divisor", variance, constant(np.float32(epsilon), "epsilon"))
    part = op("Mul", "part", op("Div", "quotient", square, divisor), terms[0])
    bias = node.input[2] if len(node.input) > 2 else ""
    normal = op("Sub", "normal", exact, bias) if bias else exact
    far = op("Div", "far", middle, op("Sqrt", "deviation", divisor))
    shift = op("Mul", "shift", op("Mul", "mean_part", far, terms[1]), node.input[1])
    op("Add", "", op("Add", "sum", moved, shift), op("Mul", "change", normal, part))
    return written

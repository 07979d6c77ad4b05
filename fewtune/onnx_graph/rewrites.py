"""Rewrites of single nodes into forms that suit TVM's importer and layout conversion.

One pass folds constants and applies them all. Each keeps the results of the model.
"""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto

from fewtune.onnx_graph.graph import AXES_AS_INPUT, attributes_of
from fewtune.onnx_graph.operators.builder import GraphBuilder, Handler, Scope
from fewtune.onnx_graph.operators.normalizations import EPSILON

_CHAINED = {"Sum": "Add", "Mean": "Add", "Max": "Max", "Min": "Min"}
_COMMUTATIVE = ("Add", "Mul")
_PLANE = 4
_MOST_FOLDED = 1 << 24


def rewrite(model: ModelProto) -> ModelProto:
    """Fold what follows from constants and static shapes, and rewrite nodes.

    Parameters
    ----------
    model : ModelProto
        Of operator set 10 or later, with inferred shapes; it is left as it is.
    """
    graph = GraphBuilder(model, HANDLERS, _MOST_FOLDED)
    for node in model.graph.node:
        graph.add(node, {})
    return graph.model()


def _chain(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Write Sum, Mean, Max or Min of several inputs as a chain of binary operators.

    TVM's importer stacks the inputs and reduces the new axis. That does not fuse with its
    neighbours, and stops the conversion of a convolution's layout.
    """
    operator, kind, output = _CHAINED[node.op_type], node.op_type, node.output[0]
    if len(node.input) == 2 and operator == kind:
        return False
    result, *others = node.input
    for right in others[:-1]:
        result = graph.op(operator, [result, right])
    if not others:
        graph.op("Identity", [result], output)
    elif kind == "Mean":
        count = graph.constant(len(node.input), graph.dtype(result))
        graph.op("Div", [graph.op("Add", [result, others[-1]]), count], output)
    else:
        graph.op(operator, [result, others[-1]], output)
    return True


def _positive_axes(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Count the axes of Squeeze and Unsqueeze from the front.

    A negative axis of Squeeze ends the layout conversion in ``std::bad_alloc``.
    """
    data, shape = node.input[0], graph.shape(node.input[0])
    axes = attributes_of(node).get("axes")
    if graph.opset >= AXES_AS_INPUT:
        axes = graph.value(node.input[1]) if len(node.input) > 1 else None
    if shape is None or axes is None or min(axes, default=0) >= 0:
        return False
    rank = len(shape) + (len(axes) if node.op_type == "Unsqueeze" else 0)
    counted = [int(axis) % rank for axis in axes]
    graph.on_axes(node.op_type, data, counted, node.output[0])
    return True


def _constant_operand(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Write a constant operand as a scalar or, beside four axes, with four axes, and second.

    TVM writes a scalar into the kernel, where a square becomes a product; any other constant is an
    argument of the kernel. Beside a tensor of four axes, a constant of fewer, or one as the first
    operand, leaves transposes around the operator after the layout conversion.
    """
    operands = list(node.input)
    known = [graph.value(name) for name in operands]
    if known[0] is not None and known[1] is None and node.op_type in _COMMUTATIVE:
        operands.reverse()
        known.reverse()
    if (known[0] is None) == (known[1] is None):
        return False
    place = 0 if known[1] is None else 1
    constant, shape = known[place], graph.shape(operands[1 - place])
    rank = -1 if shape is None else len(shape)
    if constant.size == 1 and 1 <= constant.ndim <= rank:
        constant = constant.reshape(())
    elif rank == _PLANE and 1 <= constant.ndim < _PLANE and node.op_type != "Pow":
        constant = constant.reshape((1,) * (_PLANE - constant.ndim) + constant.shape)
    if constant is not known[place]:
        operands[place] = graph.constant(constant)
    if operands == list(node.input):
        return False
    graph.op(node.op_type, operands, node.output[0])
    return True


def _scale(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Write a batch normalization with constant parameters as a product and a sum.

    One behind a convolution is folded into it. TVM imports any other as four operators; one is a
    division by a vector, which takes longer than all the rest.
    """
    data, *parameters = node.input
    shape, epsilon = graph.shape(data), attributes_of(node).get("epsilon", EPSILON)
    values = [graph.value(name) for name in parameters]
    if any(node.output[1:]) or shape is None or any(each is None for each in values):
        return False
    scale, bias, mean, variance = (each.astype(np.float64) for each in values)
    factor = scale / np.sqrt(variance + epsilon)
    axes = (1, -1, *([1] * (len(shape) - 2)))
    constants = [
        graph.constant(each.reshape(axes), graph.dtype(data))
        for each in (factor, bias - mean * factor)
    ]
    graph.op("Add", [graph.op("Mul", [data, constants[0]]), constants[1]], node.output[0])
    return True


def _empty_slice(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Let a slice of nothing start at 0: TVM takes no slice that ends before its start."""
    shape = graph.shape(node.output[0])
    if shape is None or 0 not in shape or len(node.input) == 1:
        return False
    axes = len(shape)
    bounds = [[0] * axes, shape, list(range(axes)), [1] * axes]
    inputs = [node.input[0], *(graph.constant(each, np.int64) for each in bounds)]
    if inputs == list(node.input):
        return False
    graph.op("Slice", inputs, node.output[0])
    return True


def _rows(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Write a ScatterElements whose index is one for a whole row as a ScatterND.

    So graph networks add messages up: they expand the index of an edge to the row of its features.
    """
    data, indices, updates = node.input
    given = attributes_of(node)
    source = next((each for each in reversed(graph.nodes) if indices in each.output), None)
    shapes = [graph.shape(name) for name in (data, indices, updates)]
    if source is None or source.op_type != "Expand" or None in shapes or given.get("axis", 0):
        return False
    told, (rows, *columns) = graph.shape(source.input[0]), shapes[1]
    if told != [rows, *[1] * len(columns)] or shapes[0][1:] != columns or shapes[2] != shapes[1]:
        return False
    # ScatterND has no other type of indices.
    index = graph.cast(graph.reshape(source.input[0], [rows, 1]), TensorProto.INT64)
    graph.op("ScatterND", [data, index, updates], node.output[0], reduction=given.get("reduction"))
    return True


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(_CHAINED, _chain),
    **dict.fromkeys(("Squeeze", "Unsqueeze"), _positive_axes),
    **dict.fromkeys(("Add", "Div", "Mul", "Pow", "Sub"), _constant_operand),
    "BatchNormalization": _scale,
    "ScatterElements": _rows,
    "Slice": _empty_slice,
}

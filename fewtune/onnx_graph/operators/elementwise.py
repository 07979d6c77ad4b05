"""Functions of elements, reductions and parts of tensors, of which TVM's importer lacks forms."""

from __future__ import annotations

import numpy as np
from onnx import NodeProto, TensorProto

from fewtune.onnx_graph.graph import attributes_of, optional
from fewtune.onnx_graph.operators.builder import GraphBuilder, Handler, Scope

_FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE})


def _is_inf(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    sides = [attributes_of(node).get(f"detect_{each}", 1) for each in ("positive", "negative")]
    return not all(sides) and graph.refuse(node, "looks for infinity of one sign")


def _power(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """A power whose exponent has another type than its base."""
    base, exponent = node.input
    kinds = [graph.element_type(each) for each in node.input]
    if kinds[0] not in _FLOATS:
        return graph.refuse(node, "raises integers to a power")
    if kinds[0] == kinds[1]:
        return False
    graph.op("Pow", [base, graph.cast(exponent, kinds[0])], node.output[0])
    return True


def _boolean_equality(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Equality of booleans by Xor: TVM compares them as floats, which LLVM refuses."""
    if graph.element_type(node.input[0]) != TensorProto.BOOL:
        return False
    graph.op("Not", [graph.op("Xor", list(node.input))], node.output[0])
    return True


def _one_hot(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """OneHot as a comparison with all indices: TVM lacks value types, and a depth with an axis."""
    data, depths, values = node.input
    shape, given, ends = graph.shape(data), graph.value(depths), graph.value(values)
    if shape is None or given is None or given.size != 1 or ends is None:
        return graph.refuse(node, "has a depth or values that are no constants")
    depth, axis = int(given.reshape(())), attributes_of(node).get("axis", -1) % (len(shape) + 1)
    along = [-1 if place == axis else 1 for place in range(len(shape) + 1)]
    places = np.arange(depth).reshape(along)
    apart = graph.reshape(data, [*shape[:axis], 1, *shape[axis:]])
    # Indices may count from the end.
    found = [
        graph.op("Equal", [apart, graph.constant(each, graph.dtype(data))])
        for each in (places, places - depth)
    ]
    off, on = (graph.constant(value) for value in ends)
    graph.op("Where", [graph.op("Or", found), on, off], node.output[0])
    return True


def _reduction(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Largest and smallest of no elements: a constant."""
    kind = graph.element_type(node.input[0])
    given, shape = (graph.shape(name) or [] for name in (node.input[0], node.output[0]))
    if kind in _FLOATS and 0 in given and 0 not in shape:
        least = -np.inf if node.op_type == "ReduceMax" else np.inf
        nothing = np.full(shape, least, graph.dtype(node.input[0]))
        graph.op("Identity", [graph.constant(nothing)], node.output[0])
        return True
    return kind == TensorProto.BOOL and graph.refuse(node, "compares booleans")


def _of_floats(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Reductions that onnxruntime truncates for integers."""
    if graph.dtype(node.input[0]).kind in "iu":
        return graph.refuse(node, "reduces integers to a fraction")
    return node.op_type == "ReduceLogSumExp" and _log_sum_exp(graph, node)


def _log_sum_exp(graph: GraphBuilder, node: NodeProto) -> bool:
    """LogSumExp in ONNX's operators.

    In TVM's form the maximum is a kernel whose values are near the result. The check of values
    between operators would take them for the result.
    """
    attributes, (data, named) = attributes_of(node), optional(node.input, 2)
    shape, left = graph.shape(data), graph.shape(node.output[0])
    given = graph.value(named) if named else np.array(attributes.get("axes", []))
    if not shape or left is None or given is None:
        return False
    if not given.size and attributes.get("noop_with_empty_axes"):
        return False
    axes = [int(axis) % len(shape) for axis in given] or list(range(len(shape)))
    most = graph.reduce("ReduceMax", data, axes)
    zero = graph.constant(0, graph.dtype(data))
    # Infinity minus infinity is NaN.
    most = graph.op("Where", [graph.op("IsInf", [most]), zero, most])
    sums = graph.reduce("ReduceSum", graph.op("Exp", [graph.op("Sub", [data, most])]), axes)
    graph.reshape(graph.op("Add", [graph.op("Log", [sums]), most]), left, node.output[0])
    return True


def _sloped(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """PRelu of integers, which TVM refuses."""
    data, slope = node.input
    if graph.dtype(data).kind == "f":
        return False
    is_below = graph.op("Less", [data, 0])
    graph.op("Where", [is_below, graph.op("Mul", [data, slope]), data], node.output[0])
    return True


def _dropout(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    data, ratio, training = optional(node.input, 3)
    is_trained = graph.value(training) if training else np.array(False)
    part = graph.value(ratio) if ratio else np.array(1.0)
    if is_trained is None or (is_trained.any() and (part is None or part.any())):
        return graph.refuse(node, "is in training mode: its output is random")
    graph.op("Identity", [data], node.output[0])
    mask, shape = optional(node.output, 2)[1], graph.shape(data)
    if mask and shape is not None:
        graph.op("Identity", [graph.constant(np.ones(shape, bool))], mask)
    return True


def _split(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    is_empty = any(0 in (graph.shape(name) or [1]) for name in node.output)
    return is_empty and graph.refuse(node, "has a part without elements, which TVM cannot store")


def _concat(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """A concatenation without its empty parts, which TVM cannot store if they are constants."""
    kept = [name for name in node.input if 0 not in (graph.shape(name) or [1])]
    if not kept or len(kept) == len(node.input):
        return False
    graph.concat(kept, attributes_of(node)["axis"], node.output[0])
    return True


HANDLERS: dict[str, Handler] = {
    "Concat": _concat,
    "Dropout": _dropout,
    "Equal": _boolean_equality,
    "IsInf": _is_inf,
    "OneHot": _one_hot,
    "PRelu": _sloped,
    "Pow": _power,
    "Split": _split,
    **{f"Reduce{kind}": _of_floats for kind in ("L2", "LogSum", "LogSumExp", "Mean")},
    **{f"Reduce{kind}": _reduction for kind in ("Max", "Min")},
}

"""Small operators that TVM's importer lacks, or of which it lacks some forms."""

from __future__ import annotations

import functools
import itertools

import numpy as np
from onnx import NodeProto, TensorProto, helper

from fewtune.onnx_graph.graph import attributes_of
from fewtune.onnx_graph.operators.builder import GraphBuilder, Handler, Scope
from fewtune.onnx_graph.operators.tensors import integer_reductions

_MOST_EXPANDED = 4
_FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE})
# Exponents of integer powers that onnxruntime computes by multiplying.
_MULTIPLIED = (2.0, 3.0)
_WHOLE = frozenset({TensorProto.INT32, TensorProto.INT64})
# Since this operator set Softmax and Hardmax work along one axis; before, on matrices.
_ONE_AXIS = 13
# What a reduction over no axes does to each element.
_OF_ONE_ELEMENT = {
    "ReduceL1": "Abs",
    "ReduceL2": "Abs",
    "ReduceLogSum": "Log",
    "ReduceSumSquare": "Mul",
}
_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")


def _eye_like(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    shape = graph.shape(node.input[0])
    if shape is None:
        return graph.refuse(node, "has an input whose shape is not known")
    attributes = attributes_of(node)
    element_type = int(attributes.get("dtype", graph.element_type(node.input[0])))
    dtype = helper.tensor_dtype_to_np_dtype(element_type)
    eye = graph.constant(np.eye(*shape, k=int(attributes.get("k", 0)), dtype=dtype))
    graph.op("Identity", [eye], node.output[0])
    return True


def _is_inf(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    attributes = attributes_of(node)
    signs = [attributes.get(f"detect_{side}", 1) for side in ("positive", "negative")]
    if all(signs):
        return False
    dtype = graph.dtype(node.input[0])
    infinite = np.inf if signs[0] else -np.inf
    if not any(signs):
        infinite = np.nan
    graph.op("Equal", [node.input[0], graph.constant(infinite, dtype)], node.output[0])
    return True


def _power(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    base, exponent = node.input
    kinds = [graph.element_type(each) for each in node.input]
    if kinds[0] in _FLOATS and kinds[0] == kinds[1]:
        return False
    if kinds[0] in _FLOATS:
        graph.op("Pow", [base, graph.cast(exponent, kinds[0])], node.output[0])
        return True
    power, shape = graph.value(exponent), graph.shape(base)
    is_one = power is not None and power.size == 1 and power.ndim <= len(shape or [])
    if power is not None and is_one and float(power.reshape(())) in _MULTIPLIED:
        # In doubles, large integers would lose their last digits.
        factors = [base] * int(power.reshape(()))
        product = functools.reduce(lambda one, other: graph.op("Mul", [one, other]), factors)
        graph.op("Identity", [product], node.output[0])
        return True
    wide = [graph.cast(each, TensorProto.DOUBLE) for each in node.input]
    graph.cast(graph.op("Round", [graph.op("Pow", wide)]), kinds[0], node.output[0])
    return True


def _boolean_equality(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Equality of booleans by Xor: TVM compares them as floats, which LLVM refuses."""
    if graph.element_type(node.input[0]) != TensorProto.BOOL:
        return False
    graph.op("Not", [graph.op("Xor", list(node.input))], node.output[0])
    return True


def _hardmax(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """One at the largest element of each row, the first of equal ones; zero elsewhere."""
    data, shape = node.input[0], graph.shape(node.input[0])
    if shape is None:
        return graph.refuse(node, "has an input whose shape is not known")
    axis = attributes_of(node).get("axis", -1 if graph.opset >= _ONE_AXIS else 1) % len(shape)
    rows = list(shape)
    if graph.opset < _ONE_AXIS:
        rows, axis = [int(np.prod(shape[:axis])), int(np.prod(shape[axis:]))], 1
    best = graph.op("ArgMax", [graph.reshape(data, rows)], axis=axis, keepdims=1)
    along = [-1 if place == axis else 1 for place in range(len(rows))]
    places = graph.constant(np.arange(rows[axis]).reshape(along), np.int64)
    found = graph.cast(graph.op("Equal", [best, places]), graph.element_type(data))
    graph.reshape(found, shape, node.output[0])
    return True


def _one_hot(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """OneHot as a comparison with all indices: TVM lacks value types, and a depth with an axis."""
    data, shape = node.input[0], graph.shape(node.input[0])
    given, values = graph.value(node.input[1]), graph.value(node.input[2])
    if shape is None or given is None or given.size != 1:
        return graph.refuse(node, "has a depth that is no constant: bind it by --constant")
    depth = int(given.reshape(()))
    axis = attributes_of(node).get("axis", -1) % (len(shape) + 1)
    # Floats are compared as floats: 1.5 is no index.
    is_float = graph.element_type(data) in _FLOATS
    places = data if is_float else graph.cast(data, TensorProto.INT64)
    dtype = graph.dtype(data) if is_float else np.dtype(np.int64)
    from_end = graph.op("Add", [places, graph.constant(depth, dtype)])
    is_negative = graph.op("Less", [places, graph.constant(0, dtype)])
    places = graph.op("Where", [is_negative, from_end, places])
    along = [-1 if place == axis else 1 for place in range(len(shape) + 1)]
    every = graph.constant(np.arange(depth).reshape(along), dtype)
    apart = graph.reshape(places, [*shape[:axis], 1, *shape[axis:]])
    if values is None:
        off, on = (graph.slice(node.input[2], 0, place, place + 1) for place in range(2))
    else:
        off, on = (graph.constant(value) for value in values)
    graph.op("Where", [graph.op("Equal", [apart, every]), on, off], node.output[0])
    return True


def _reduction(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Reductions in which TVM differs from ONNX: over no axes, of booleans, of integers."""
    given, data = attributes_of(node), node.input[0]
    named = node.input[1] if len(node.input) > 1 else ""
    axes = graph.value(named) if named else np.array(given.get("axes", []))
    if axes is not None and not axes.size and given.get("noop_with_empty_axes"):
        operator = _OF_ONE_ELEMENT.get(node.op_type, "Identity")
        graph.op(operator, [data] * (1 + (operator == "Mul")), node.output[0])
        return True
    kind = graph.element_type(data)
    if node.op_type in ("ReduceMax", "ReduceMin") and kind == TensorProto.BOOL:
        number = graph.cast(data, TensorProto.INT32)
        reduced = graph.op(node.op_type, [number, *node.input[1:]], **given)
        graph.cast(reduced, kind, node.output[0])
        return True
    shape = graph.shape(data)
    if kind in _WHOLE and axes is not None and shape:
        chosen = [int(axis) % len(shape) for axis in axes] or list(range(len(shape)))
        if node.op_type == "ReduceMean":
            total = graph.reduce("ReduceSum", data, chosen, given.get("keepdims", 1))
            count = int(np.prod([shape[axis] for axis in chosen]))
            graph.op("Div", [total, graph.constant(count, graph.dtype(data))], node.output[0])
            return True
        if node.op_type in integer_reductions.TRUNCATED:
            integer_reductions.write_reduction(graph, node, chosen, given.get("keepdims", 1))
            return True
    return node.op_type == "ReduceLogSumExp" and _log_sum_exp(graph, node, scope)


def _log_sum_exp(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """LogSumExp in ONNX's operators.

    In TVM's form the maximum is a kernel whose values are near the result. The check of values
    between operators would take them for the result.
    """
    attributes, data = attributes_of(node), node.input[0]
    given = graph.value(node.input[1]) if len(node.input) > 1 and node.input[1] else None
    shape = graph.shape(data)
    named = attributes.get("axes") if given is None else given.tolist()
    unknown = len(node.input) > 1 and node.input[1] and given is None
    if unknown or shape is None or graph.element_type(data) not in _FLOATS:
        return False
    if not named and attributes.get("noop_with_empty_axes"):
        return False
    axes = [int(axis) % len(shape) for axis in named or range(len(shape))]
    if not axes:
        # The input is a scalar.
        graph.op("Identity", [data], node.output[0])
        return True
    most = graph.reduce("ReduceMax", data, axes)
    zero = graph.constant(0, graph.dtype(data))
    # Infinity minus infinity is NaN.
    most = graph.op("Where", [graph.op("IsInf", [most]), zero, most])
    sums = graph.reduce("ReduceSum", graph.op("Exp", [graph.op("Sub", [data, most])]), axes)
    kept = bool(attributes.get("keepdims", 1))
    result = graph.op("Add", [graph.op("Log", [sums]), most], node.output[0] if kept else None)
    if not kept:
        left = [size for axis, size in enumerate(shape) if axis not in axes]
        graph.reshape(result, left, node.output[0])
    return True


def _sign(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Sign of unsigned integers, which TVM tests for being negative."""
    if graph.dtype(node.input[0]).kind != "u":
        return False
    is_any = graph.cast(node.input[0], TensorProto.BOOL)
    graph.cast(is_any, graph.element_type(node.input[0]), node.output[0])
    return True


def _dropout(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    training = graph.value(node.input[2]) if len(node.input) > 2 and node.input[2] else None
    ratio = graph.value(node.input[1]) if len(node.input) > 1 and node.input[1] else None
    is_trained = training is not None and bool(training) and (ratio is None or float(ratio) > 0)
    if is_trained or (len(node.input) > 2 and node.input[2] and training is None):
        return graph.refuse(node, "is in training mode: its output is random")
    graph.op("Identity", [node.input[0]], node.output[0])
    if len(node.output) > 1 and node.output[1]:
        shape = graph.shape(node.input[0])
        if shape is None:
            return graph.refuse(node, "has an input whose shape is not known")
        graph.op("Identity", [graph.constant(np.ones(shape, bool))], node.output[1])
    return True


def _normalization(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Batch normalisation in training mode, by the batch's own mean and variance."""
    attributes = attributes_of(node)
    if not attributes.get("training_mode"):
        return False
    data, scale, bias, mean, variance = node.input
    shape = graph.shape(data)
    if shape is None:
        return graph.refuse(node, "has an input whose shape is not known")
    dtype = graph.dtype(data)
    axes = [axis for axis in range(len(shape)) if axis != 1]
    wide = [1, shape[1], *([1] * (len(shape) - 2))]
    now = graph.reduce("ReduceMean", data, axes)
    centred = graph.op("Sub", [data, now])
    spread = graph.reduce("ReduceMean", graph.op("Mul", [centred, centred]), axes)
    epsilon = graph.constant(attributes.get("epsilon", 1e-5), dtype)
    deviation = graph.op("Sqrt", [graph.op("Add", [spread, epsilon])])
    normal = graph.op("Div", [centred, deviation])
    scaled = graph.op("Mul", [normal, graph.reshape(scale, wide)])
    graph.op("Add", [scaled, graph.reshape(bias, wide)], node.output[0])
    momentum = float(attributes.get("momentum", 0.9))
    for output, before, after in zip(
        node.output[1:], (mean, variance), (now, spread), strict=False
    ):
        if output:
            old = graph.op("Mul", [before, graph.constant(momentum, dtype)])
            new = graph.op(
                "Mul", [graph.reshape(after, [shape[1]]), graph.constant(1 - momentum, dtype)]
            )
            graph.op("Add", [old, new], output)
    return True


def _determinant(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Determinant of matrices up to 4x4, by Leibniz' formula: larger ones need an elimination."""
    shape = graph.shape(node.input[0])
    if shape is None or shape[-1] > _MOST_EXPANDED:
        return graph.refuse(node, f"has matrices larger than {_MOST_EXPANDED}x{_MOST_EXPANDED}")
    size, outer = shape[-1], shape[:-2]
    flat = graph.reshape(node.input[0], [*outer, size * size])
    terms = []
    for order in itertools.permutations(range(size)):
        swaps = sum(a > b for place, a in enumerate(order) for b in order[place + 1 :])
        factors = [
            graph.slice(flat, len(outer), row * size + column, row * size + column + 1)
            for row, column in enumerate(order)
        ]
        term = functools.reduce(lambda one, other: graph.op("Mul", [one, other]), factors)
        terms.append(graph.op("Neg", [term]) if swaps % 2 else term)
    total = functools.reduce(lambda one, other: graph.op("Add", [one, other]), terms)
    graph.reshape(total, outer, node.output[0])
    return True


HANDLERS: dict[tuple[str, str], Handler] = {
    ("", "BatchNormalization"): _normalization,
    ("", "Det"): _determinant,
    ("", "Dropout"): _dropout,
    ("", "Equal"): _boolean_equality,
    ("", "EyeLike"): _eye_like,
    ("", "Hardmax"): _hardmax,
    ("", "IsInf"): _is_inf,
    ("", "OneHot"): _one_hot,
    ("", "Pow"): _power,
    ("", "Sign"): _sign,
    **{("", f"Reduce{kind}"): _reduction for kind in _REDUCTIONS},
}

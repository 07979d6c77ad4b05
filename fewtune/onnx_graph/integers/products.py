"""Convolutions and products of dequantised bytes, and ONNX's integer operators."""

from __future__ import annotations

import numpy as np
from onnx import NodeProto, TensorProto

from fewtune.onnx_graph.graph import attributes_of, optional
from fewtune.onnx_graph.integers.affine import Bytes, Scaled
from fewtune.onnx_graph.integers.totals import Rows, Totals, Windows
from fewtune.onnx_graph.integers.walk import Walk
from fewtune.onnx_graph.integers.weights import Signed, Window
from fewtune.onnx_graph.operators.quantized.affine import MOST_OF_BYTE

_PLANE = 4
# Lanes of the widest vector, and the most groups that are joined to fill it.
_LANES, _MOST_JOINED = 16, 16


def convolution(walk: Walk, node: NodeProto) -> bool:
    """A ``Conv`` of dequantised bytes with constant weights."""
    data, weight, bias = optional(node.input, 3)
    found = _operands(walk, data, weight, axis=0)
    if found is None:
        return False
    given, weights, scales = found
    totals = _windows(walk, node, given.name, weights)
    if totals is None:
        return False
    added = _added(walk, bias, scales * np.float64(given.scale), (1, -1, 1, 1))
    if added is None or not totals.fit(weights, added[0]):
        return False
    sums = _summed(walk, totals, given, weights, added[0])
    factor = (scales * np.float64(given.scale)).reshape(1, -1, 1, 1)
    return walk.defer(node.output[0], Scaled(sums, factor, added[1]))


def product(walk: Walk, node: NodeProto) -> bool:
    """A ``MatMul`` of dequantised bytes with constant weights."""
    return _matrix(walk, node, *node.input, "", 1.0)


def dense(walk: Walk, node: NodeProto) -> bool:
    """A ``Gemm`` of dequantised bytes with constant weights."""
    given = attributes_of(node)
    data, weight, bias = optional(node.input, 3)
    if given.get("transA") or (bias and given.get("beta", 1.0) != 1.0):
        return False
    alpha = float(given.get("alpha", 1.0))
    return _matrix(walk, node, data, weight, bias, alpha, bool(given.get("transB")))


def _matrix(
    walk: Walk,
    node: NodeProto,
    data: str,
    weight: str,
    bias: str,
    alpha: float,
    transposed: bool = False,
) -> bool:
    found = _operands(walk, data, weight, axis=0 if transposed else 1)
    if found is None:
        return False
    given, weights, scales = found
    weights = weights.transposed() if transposed else weights
    totals = _rows(walk, given.name, weights)
    if totals is None:
        return False
    factor = scales * np.float64(given.scale) * alpha
    added = _added(walk, bias, factor, (-1,))
    if added is None or not totals.fit(weights, added[0]):
        return False
    sums = _summed(walk, totals, given, weights, added[0])
    return walk.defer(node.output[0], Scaled(sums, factor, added[1]))


def _windows(walk: Walk, node: NodeProto, data: str, weights: Signed) -> Windows | None:
    """The windows that a convolution sums; None if no kernel of bytes computes it."""
    shape, sizes = walk.graph.shape(data), weights.values.shape
    if shape is None or len(shape) != _PLANE or len(sizes) != _PLANE:
        return None
    window = Window.of(attributes_of(node), shape, list(sizes[2:]))
    if not _has_kernel(window, weights.values, shape):
        return None
    windows = Windows(window, tuple(shape), sizes)
    return windows if windows.are_exact or not weights.is_moved else None


def _rows(walk: Walk, data: str, weights: Signed) -> Rows | None:
    """The rows that a product sums; None if no kernel of bytes computes it."""
    shape = walk.graph.shape(data)
    if shape is None or len(shape) < 2 or weights.values.ndim != 2:
        return None
    return Rows(len(shape), weights.values.shape[0])


def _operands(
    walk: Walk, data: str, weight: str, axis: int
) -> tuple[Bytes, Signed, np.ndarray] | None:
    given, found = walk.bytes_of(data), walk.weights.get(weight)
    if given is None or found is None:
        return None
    weights, scales = found[0].signed(axis), found[0].scales(axis)
    return None if weights is None or scales is None else (given, weights, scales)


def _added(
    walk: Walk, bias: str, scales: np.ndarray, shape: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray] | None:
    """A bias as integers in units of the sums, and as floats: one of the two is zero."""
    none = np.zeros(1)
    if not bias:
        return none.astype(np.int64), none
    if bias in walk.weights:
        found = walk.weights[bias][0]
        whole = found.values.astype(np.int64) - found.zero.astype(np.int64)
        floats = whole * found.scale.astype(np.float64)
        near = np.allclose(found.scale, scales, rtol=1e-5, atol=0)
        is_whole = found.values.dtype == np.int32 and near
    else:
        values = walk.graph.value(bias)
        if values is None:
            return None
        floats, is_whole = values.astype(np.float64), False
    if floats.ndim > 1 and floats.size != max(floats.shape):
        return None
    floats = floats.reshape(-1)
    if is_whole:
        return whole.reshape(-1).reshape(shape), none
    return none.astype(np.int64), floats.reshape(shape)


def _summed(walk: Walk, totals: Totals, data: Bytes, weights: Signed, added: np.ndarray) -> str:
    """Write the sums of (bytes - zero point) x weights, plus a bias; return their name."""
    graph = walk.graph
    inputs = [data.name, graph.constant(weights.values)]
    if data.zero:
        inputs.append(graph.constant(np.uint8(data.zero)))
    sums = graph.op(totals.operator, inputs, **totals.attributes)
    if weights.is_moved:
        total = totals.written(graph, data.name)
        if data.zero:
            zeros = (data.zero * totals.count).astype(np.int32)
            total = graph.op("Sub", [total, graph.constant(zeros)])
        sums = graph.op("Add", [sums, _times_moved(walk, totals, total, weights)])
    if added.any():
        sums = graph.op("Add", [sums, graph.constant(added.astype(np.int32))])
    return sums


def _times_moved(walk: Walk, totals: Totals, total: str, weights: Signed) -> str:
    """Write the part of the sums that ``weights.moved`` multiplies; return its name."""
    moved = weights.moved.reshape(totals.along).astype(np.int32)
    return walk.graph.op("Mul", [total, walk.graph.constant(moved)])


def integer_product(walk: Walk, node: NodeProto) -> bool:
    """A ``MatMulInteger`` with constant weights."""
    data, weight, zero, weight_zero = optional(node.input, 4)
    weights = _integer_weights(walk, data, weight, weight_zero, -1)
    if weights is None:
        return False
    totals = _rows(walk, data, weights)
    return totals is not None and _with_zero(walk, node, totals, weights, zero)


def integer_convolution(walk: Walk, node: NodeProto) -> bool:
    """A ``ConvInteger`` with constant weights."""
    data, weight, zero, weight_zero = optional(node.input, 4)
    weights = _integer_weights(walk, data, weight, weight_zero, 0)
    if weights is None:
        return False
    totals = _windows(walk, node, data, weights)
    return totals is not None and _with_zero(walk, node, totals, weights, zero)


def _integer_weights(
    walk: Walk, data: str, weight: str, weight_zero: str, axis: int
) -> Signed | None:
    graph = walk.graph
    values = graph.value(weight)
    zero = graph.value(weight_zero) if weight_zero else np.zeros(1, np.int8)
    kind = TensorProto.UINT8 if data in walk.unsigned else graph.element_type(data)
    signed = walk.unsigned.get(data, ("", False))[1]
    if values is None or zero is None or kind != TensorProto.UINT8 or signed:
        return None
    shape = [1] * values.ndim
    shape[axis] = -1
    return Signed.of(values, zero.reshape(shape))


def _with_zero(walk: Walk, node: NodeProto, totals: Totals, weights: Signed, zero: str) -> bool:
    """Write a product of bytes, corrected for zero points.

    ``(data - zero) (values + moved)`` is ``data values + total(data) moved - zero sums``, where
    ``sums`` are of ``values + moved``.
    """
    graph, data = walk.graph, node.input[0]
    place = graph.value(zero) if zero else np.zeros(1, np.uint8)
    sums = totals.sums(weights.whole)
    if not totals.fit(weights, np.abs(sums) * MOST_OF_BYTE):
        return False
    scalar = (graph.shape(zero) in ([], [1])) if place is None else place.size == 1
    if not scalar:
        return False
    walk.write(data)
    output = node.output[0]
    inputs = [data, graph.constant(weights.values)]
    if not weights.is_moved and (place is not None or not sums.any()):
        if place is not None and place.any():
            inputs.append(graph.constant(place.reshape(())))
        graph.op(node.op_type, inputs, output, **totals.attributes)
        return True
    result = graph.op(node.op_type, inputs, **totals.attributes)
    if weights.is_moved:
        moved = _times_moved(walk, totals, totals.written(graph, data), weights)
        result = graph.op("Add", [result, moved])
    if zero:
        walk.write(zero)
        wide = graph.cast(zero, TensorProto.INT32)
    else:
        wide = graph.constant(np.zeros((), np.int32))
    product = graph.op("Mul", [graph.constant(sums.astype(np.int32)), wide])
    graph.op("Sub", [result, product], output)
    return True


def _has_kernel(window: Window, weights: np.ndarray, shape: list[int]) -> bool:
    """Whether a convolution has a kernel of bytes that is not slower than one of floats.

    Groups whose filters do not fill a vector are joined, with zeros between them. With too many
    groups, zeros would be most of the work.
    """
    groups, filters = window.groups, weights.shape[0]
    depthwise = groups == shape[1] == filters and weights.shape[1] == 1
    joined = range(1, _MOST_JOINED + 1)
    fills = any(groups % n == 0 and n * filters // groups % _LANES == 0 for n in joined)
    return depthwise or fills or groups <= _MOST_JOINED

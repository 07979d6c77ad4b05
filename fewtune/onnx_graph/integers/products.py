"""Convolutions and products of dequantised bytes, and ONNX's integer operators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto, TensorProto

from fewtune.onnx_graph.graph import attributes_of, optional
from fewtune.onnx_graph.integers.affine import Bytes, Scaled
from fewtune.onnx_graph.integers.walk import Walk
from fewtune.onnx_graph.integers.weights import Window, as_signed, sums_fit

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
    shape = walk.graph.shape(given.name)
    if shape is None or len(shape) != _PLANE or weights.ndim != _PLANE:
        return False
    window = Window.of(attributes_of(node), shape, list(weights.shape[2:]))
    if not _has_kernel(window, weights, shape):
        return False
    added = _added(walk, bias, scales * np.float64(given.scale), (1, -1, 1, 1))
    if added is None or not sums_fit(weights, (1, 2, 3), added[0]):
        return False
    sums = _summed(walk, "ConvInteger", given, weights, added[0], window.attributes)
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
    shape = walk.graph.shape(given.name)
    if weights.ndim != 2 or shape is None or len(shape) < 2:
        return False
    weights = np.ascontiguousarray(weights.T) if transposed else weights
    factor = scales * np.float64(given.scale) * alpha
    added = _added(walk, bias, factor, (-1,))
    if added is None or not sums_fit(weights, (0,), added[0]):
        return False
    sums = _summed(walk, "MatMulInteger", given, weights, added[0], {})
    return walk.defer(node.output[0], Scaled(sums, factor, added[1]))


def _operands(
    walk: Walk, data: str, weight: str, axis: int
) -> tuple[Bytes, np.ndarray, np.ndarray] | None:
    given, found = walk.bytes_of(data), walk.weights.get(weight)
    if given is None or found is None:
        return None
    weights, scales = found[0].centred(), found[0].scales(axis)
    return None if weights is None or scales is None else (given, weights, scales)


def _added(
    walk: Walk, bias: str, scales: np.ndarray, shape: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray] | None:
    """A bias as integers in units of the sums, and as floats; one of both is zero."""
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


def _summed(
    walk: Walk,
    operator: str,
    data: Bytes,
    weights: np.ndarray,
    added: np.ndarray,
    attributes: dict[str, object],
) -> str:
    graph = walk.graph
    inputs = [data.name, graph.constant(weights)]
    if data.zero:
        inputs.append(graph.constant(np.uint8(data.zero)))
    sums = graph.op(operator, inputs, **attributes)
    if added.any():
        sums = graph.op("Add", [sums, graph.constant(added.astype(np.int32))])
    return sums


def integer_product(walk: Walk, node: NodeProto) -> bool:
    """A ``MatMulInteger`` with constant weights."""
    data, weight, zero, weight_zero = optional(node.input, 4)
    weights = _integer_weights(walk, data, weight, weight_zero, -1)
    shape = walk.graph.shape(data)
    if weights is None or weights.values.ndim != 2 or shape is None or len(shape) < 2:
        return False

    def total(wide: str) -> str:
        return walk.graph.reduce("ReduceSum", wide, [len(shape) - 1])

    return _with_zero(walk, node, weights, zero, weights.whole.sum(0), (0,), {}, total)


def integer_convolution(walk: Walk, node: NodeProto) -> bool:
    """A ``ConvInteger`` with constant weights."""
    data, weight, zero, weight_zero = optional(node.input, 4)
    weights = _integer_weights(walk, data, weight, weight_zero, 0)
    shape = walk.graph.shape(data)
    if weights is None or shape is None or len(shape) != _PLANE or weights.values.ndim != _PLANE:
        return False
    window = Window.of(attributes_of(node), shape, list(weights.values.shape[2:]))
    if not _has_kernel(window, weights.values, shape):
        return False
    if weights.moved.any():
        # The sums of the windows' bytes would be another convolution.
        return False
    sums = window.sums(weights.whole, shape)
    return _with_zero(walk, node, weights, zero, sums, (1, 2, 3), window.attributes)


@dataclass(frozen=True)
class _Weights:
    """Constant weights.

    Attributes
    ----------
    whole : numpy.ndarray
        Weights less their zero points, int64.
    values : numpy.ndarray
        The same as int8, less ``moved``.
    moved : numpy.ndarray
        Along the axis of zero points; zero if the weights fit int8.
    """

    whole: np.ndarray
    values: np.ndarray
    moved: np.ndarray


def _integer_weights(
    walk: Walk, data: str, weight: str, weight_zero: str, axis: int
) -> _Weights | None:
    graph = walk.graph
    values = graph.value(weight)
    zero = graph.value(weight_zero) if weight_zero else np.zeros(1, np.int8)
    kind = TensorProto.UINT8 if data in walk.unsigned else graph.element_type(data)
    signed = walk.unsigned.get(data, ("", False))[1]
    if values is None or zero is None or kind != TensorProto.UINT8 or signed:
        return None
    shape = [1] * values.ndim
    shape[axis] = -1
    zero = zero.reshape(shape).astype(np.int64)
    whole = values.astype(np.int64) - zero
    centred = as_signed(values, zero)
    if centred is not None:
        return _Weights(whole, centred, np.zeros_like(zero))
    middle = 128 if values.dtype == np.uint8 else 0
    moved = as_signed(values, middle)
    return None if moved is None else _Weights(whole, moved, middle - zero)


def _with_zero(
    walk: Walk,
    node: NodeProto,
    weights: _Weights,
    zero: str,
    sums: np.ndarray,
    axes: tuple[int, ...],
    attributes: dict[str, object],
    total: Callable[[str], str] | None = None,
) -> bool:
    """Write a product of bytes, with corrections for zero points.

    ``(data - zero) (values + moved)`` is ``data values + total(data) moved - zero sums``.
    """
    graph, data = walk.graph, node.input[0]
    place = graph.value(zero) if zero else np.zeros(1, np.uint8)
    depth = int(np.prod([weights.values.shape[axis] for axis in axes]))
    added = (np.abs(sums) + np.abs(weights.moved).max() * depth) * 255
    if not sums_fit(weights.values, axes, added):
        return False
    scalar = (graph.shape(zero) in ([], [1])) if place is None else place.size == 1
    if not scalar:
        return False
    walk.write(data)
    output = node.output[0]
    inputs = [data, graph.constant(weights.values)]
    is_moved = bool(weights.moved.any())
    if not is_moved and (place is not None or not sums.any()):
        if place is not None and place.any():
            inputs.append(graph.constant(place.reshape(())))
        graph.op(node.op_type, inputs, output, **attributes)
        return True
    result = graph.op(node.op_type, inputs, **attributes)
    if is_moved:
        assert total is not None
        moved = graph.constant(weights.moved.astype(np.int32))
        result = graph.op(
            "Add", [result, graph.op("Mul", [total(graph.cast(data, TensorProto.INT32)), moved])]
        )
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

"""Convolutions and products of dequantized bytes, and ONNX's integer operators."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from onnx import NodeProto, TensorProto

from fewtune.onnx_graph.graph import attributes_of, optional
from fewtune.onnx_graph.operators.builder import GraphBuilder
from fewtune.onnx_graph.quantized.affine import (
    EXACT,
    MOST_OF_BYTE,
    Scaled,
    Signed,
    Walk,
    centered,
    signed_bytes,
)

_PLANE = 4
_MOST_SUM = 2**31 - 1


class Product(NamedTuple):
    """A product of bytes with signed weights: of matrices, or of a convolution's windows.

    Weights that do not fit signed bytes are signed bytes plus a number, ``moved`` of `Signed`. The
    number's part of the product is the number times a sum of the bytes: of a row, or of a window.
    """

    shape: list[int]
    values: np.ndarray
    moved: int
    window: dict[str, Any]
    """A 2-D convolution's attributes; empty for matrices."""

    @property
    def operator(self) -> str:
        """Of ONNX."""
        return "ConvInteger" if self.window else "MatMulInteger"

    @property
    def along(self) -> tuple[int, ...]:
        """The shape in which one number for each output is broadcast to the sums."""
        return (1, -1, 1, 1) if self.window else (-1,)

    @property
    def _summed(self) -> tuple[int, ...]:
        """Axes of the weights that are summed."""
        return (1, 2, 3) if self.window else (0,)

    @property
    def depth(self) -> int:
        """How many products each sum adds."""
        return int(np.prod([self.values.shape[axis] for axis in self._summed]))

    @property
    def whole(self) -> np.ndarray:
        """The weights less their zero points, int64."""
        return self.values.astype(np.int64) + self.moved

    def sums(self, weights: np.ndarray) -> np.ndarray:
        """For each sum, the sum of the weights that multiply its bytes, int64."""
        if not self.window:
            return weights.sum(0)
        taps = weights.astype(np.int64).sum(1)
        if not any(self.window["pads"]):
            return taps.sum((1, 2)).reshape(self.along)
        return np.einsum("orc,yr,xc->oyx", taps, *map(self._inside, (0, 1)))[None]

    def _inside(self, axis: int) -> np.ndarray:
        """Whether each tap is inside the input, for each output along an axis, (outputs, taps)."""
        extent, taps = self.shape[2 + axis], self.values.shape[2 + axis]
        first, last = self.window["pads"][axis], self.window["pads"][axis + 2]
        step, reach = self.window["strides"][axis], self.window["dilations"][axis]
        outputs = (extent + first + last - (taps - 1) * reach - 1) // step + 1
        places = np.arange(outputs)[:, None] * step + np.arange(taps) * reach - first
        return ((places >= 0) & (places < extent)).astype(np.int64)

    @property
    def terms(self) -> np.ndarray:
        """How many bytes each sum adds: fewer at the borders, where windows reach into padding."""
        if not self.window:
            return np.array([self.depth])
        return self.sums(np.ones((1, *self.values.shape[1:]), np.int64))

    def fits(self, added: np.ndarray) -> bool:
        """Whether every sum of products, plus ``added``, fits int32."""
        values = np.abs(self.values.astype(np.int64))
        most = values.sum(self._summed).max(initial=0) * 2 * MOST_OF_BYTE
        most += abs(self.moved) * self.depth * MOST_OF_BYTE
        return bool(most + np.abs(added.astype(np.int64)).max(initial=0) < _MOST_SUM)

    def totals(self, graph: GraphBuilder, data: str) -> str:
        """Write the sums of the bytes in int32; padding counts as zeros."""
        if not self.window:
            wide = graph.cast(data, TensorProto.INT32)
            return graph.reduce("ReduceSum", wide, [len(self.shape) - 1])
        # A convolution of the channels' sums with ones.
        wide = graph.reduce("ReduceSum", graph.cast(data, TensorProto.FLOAT), [1])
        ones = np.ones((1, 1, *self.values.shape[2:]), np.float32)
        if ones.size > 1 or any(self.window["pads"]) or max(self.window["strides"]) > 1:
            wide = graph.op("Conv", [wide, graph.constant(ones)], **self.window)
        return graph.cast(wide, TensorProto.INT32)


def product(walk: Walk, node: NodeProto) -> bool:
    """A ``Conv``, ``MatMul`` or ``Gemm`` of dequantized bytes with constant weights."""
    attributes, (data, weight, bias) = attributes_of(node), optional(node.input, 3)
    if attributes.get("transA") or (bias and attributes.get("beta", 1.0) != 1.0):
        return False
    transposed = bool(attributes.get("transB"))
    axis = 0 if node.op_type == "Conv" or transposed else 1
    given, constant = walk.bytes_of(data), walk.weights.get(weight)
    if given is None or constant is None:
        return False
    values, scales, zero, _ = constant[0]
    weights = signed_bytes(values, zero, axis) if constant[0].is_along(axis) else None
    if weights is not None and transposed:
        weights = weights._replace(values=np.ascontiguousarray(weights.values.T))
    found = None if weights is None else _product(walk, node, given.name, weights)
    if found is None:
        return False
    factor = scales.reshape(-1) * np.float64(given.scale) * float(attributes.get("alpha", 1.0))
    added = _added(walk, bias, factor, found.along)
    if added is None or not found.fits(added[0]):
        return False
    sums = _sums(walk.graph, found, given.name, given.zero, added[0])
    return walk.defer(node.output[0], Scaled(sums, factor.reshape(found.along), added[1]))


def _product(walk: Walk, node: NodeProto, data: str, weights: Signed) -> Product | None:
    """A product of bytes; None if no kernel computes it."""
    shape, sizes = walk.graph.shape(data), weights.values.shape
    if shape is None:
        return None
    if not node.op_type.startswith("Conv"):
        fits = len(shape) >= 2 and len(sizes) == 2
        return Product(shape, *weights, {}) if fits else None
    if len(shape) != _PLANE or len(sizes) != _PLANE:
        return None
    given = attributes_of(node)
    defaults = {"strides": [1, 1], "dilations": [1, 1], "pads": [0] * 4, "group": 1}
    window = {name: given.get(name, default) for name, default in defaults.items()}
    product = Product(shape, *weights, window)
    if window["group"] > 1:
        is_depthwise = window["group"] == shape[1] == sizes[0] and sizes[1] == 1
        return product if is_depthwise and not weights.moved else None
    # `totals` sums all channels, in float32.
    return product if product.depth * MOST_OF_BYTE <= EXACT or not weights.moved else None


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
    if is_whole:
        return whole.reshape(-1).reshape(shape), none
    return none.astype(np.int64), floats.reshape(-1).reshape(shape)


def _sums(
    graph: GraphBuilder, product: Product, data: str, zero: int | str, added: np.ndarray
) -> str:
    """Write the sums of (bytes - zero point) x weights, plus a bias; return their name.

    The zero point is a number, or the name of a value that is not known: ``(data - zero) (values +
    moved)`` is ``data values + total(data) moved - zero sums``, where ``sums`` are of ``values +
    moved``.
    """
    inputs = [data, graph.constant(product.values)]
    number = 0 if isinstance(zero, str) else zero
    if number:
        inputs.append(graph.constant(np.uint8(number)))
    sums = graph.op(product.operator, inputs, **product.window)
    if product.moved:
        total = product.totals(graph, data)
        if number:
            zeros = (number * product.terms).astype(np.int32)
            total = graph.op("Sub", [total, graph.constant(zeros)])
        moved = graph.op("Mul", [total, graph.constant(np.int32(product.moved))])
        sums = graph.op("Add", [sums, moved])
    if isinstance(zero, str):
        each = graph.constant(product.sums(product.whole).astype(np.int32))
        less = graph.op("Mul", [each, graph.cast(zero, TensorProto.INT32)])
        sums = graph.op("Sub", [sums, less])
    if added.any():
        sums = graph.op("Add", [sums, graph.constant(added.astype(np.int32))])
    return sums


def integer_operator(walk: Walk, node: NodeProto) -> bool:
    """A ``MatMulInteger`` or ``ConvInteger`` with constant weights, corrected for zero points."""
    graph = walk.graph
    data, _, zero = optional(node.input, 3)
    weights = _constant_weights(walk, node)
    product = None if weights is None else _product(walk, node, data, weights)
    if product is None:
        return False
    place = graph.value(zero) if zero else np.zeros(1, np.uint8)
    sums = product.sums(product.whole)
    is_number = graph.shape(zero) in ([], [1]) if place is None else place.size == 1
    if not is_number or not product.fits(np.abs(sums) * MOST_OF_BYTE):
        return False
    walk.write(data)
    walk.write(zero)
    known = zero if place is None else int(place.reshape(()))
    result = _sums(graph, product, data, known, np.zeros(1))
    graph.op("Identity", [result], node.output[0])
    return True


def _constant_weights(walk: Walk, node: NodeProto) -> Signed | None:
    """Weights of an integer operator on unsigned data."""
    data, weight, _, weight_zero = optional(node.input, 4)
    graph = walk.graph
    values = graph.value(weight)
    zero = graph.value(weight_zero) if weight_zero else np.zeros(1, np.int8)
    kind = TensorProto.UINT8 if data in walk.unsigned else graph.element_type(data)
    signed = walk.unsigned.get(data, ("", False))[1]
    if values is None or zero is None or kind != TensorProto.UINT8 or signed:
        return None
    return signed_bytes(values, zero, -1 if node.op_type == "MatMulInteger" else 0)


def integer_operator_in_floats(graph: GraphBuilder, node: NodeProto) -> bool:
    """An integer operator that no kernel of bytes computes."""
    data, weight, zero, weight_zero = optional(node.input, 4)
    is_matrix = node.op_type == "MatMulInteger"
    left = centered(graph, data, zero, -2 if is_matrix else 1)
    right = centered(graph, weight, weight_zero, -1 if is_matrix else 0)
    if is_matrix:
        sums = _exact_product(graph, left, right)
    else:
        # float32 rounds sums beyond 2**24, as it does those of any convolution.
        sums = graph.op("Round", [graph.op("Conv", [left, right], **attributes_of(node))])
    graph.op("Cast", [sums], node.output[0], to=TensorProto.INT32)
    return True


def _exact_product(graph: GraphBuilder, left: str, right: str) -> str:
    """A matrix product of whole numbers: in float32 if that holds all sums, otherwise in int32."""
    weights, shape = graph.value(right), graph.shape(right)
    largest = shape[max(0, len(shape) - 2)] * MOST_OF_BYTE
    if weights is not None:
        largest = np.abs(weights).sum(max(0, weights.ndim - 2)).max(initial=0)
    if largest * MOST_OF_BYTE > EXACT:
        left, right = (graph.cast(each, TensorProto.INT32) for each in (left, right))
    return graph.op("MatMul", [left, right])

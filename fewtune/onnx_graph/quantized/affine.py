"""Float tensors as scaled and shifted integers, and quantization in plain operators.

Results are rounded half to even, as onnxruntime does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from onnx import NodeProto, TensorProto

from fewtune.onnx_graph.graph import attributes_of, optional
from fewtune.onnx_graph.operators.builder import GraphBuilder

MOST_OF_BYTE = 255
# float32 holds every integer up to this.
EXACT = 2**24
_BYTE = {TensorProto.UINT8: 0, TensorProto.INT8: 128}
_QUANTIZED = {
    TensorProto.UINT8: np.uint8,
    TensorProto.INT8: np.int8,
    TensorProto.UINT16: np.uint16,
    TensorProto.INT16: np.int16,
}
_DEQUANTIZED = {*_QUANTIZED, TensorProto.INT32, TensorProto.INT4, TensorProto.UINT4}


@dataclass(frozen=True)
class Bytes:
    """A float tensor as (bytes - zero) * scale; ``name`` is the uint8 tensor."""

    name: str
    scale: np.float32
    zero: int

    def is_like(self, other: Bytes) -> bool:
        """Whether two tensors have the same scale and zero point."""
        return (self.scale, self.zero) == (other.scale, other.zero)

    @property
    def scaled(self) -> Scaled:
        """The same tensor in the more general form."""
        scale = np.float64(self.scale)
        return Scaled(self.name, np.array(scale), np.array(-scale * self.zero))


@dataclass(frozen=True)
class Scaled:
    """A float tensor as tensor * factor + offset, clipped to bounds.

    ``name`` is an int32 or float32 tensor; factor and offset are float64, and broadcast to it.
    """

    name: str
    factor: np.ndarray
    offset: np.ndarray
    least: float = -np.inf
    most: float = np.inf

    def bounded(self, least: float, most: float) -> Scaled:
        """The same tensor, clipped to these bounds as well."""
        return replace(
            self,
            least=min(max(self.least, least), most),
            most=max(min(self.most, most), least),
        )


def number(graph: GraphBuilder, name: str) -> np.ndarray | None:
    """The value of a one-element constant; None for any other value."""
    value = graph.value(name) if name else None
    return value.reshape(-1)[0] if value is not None and value.size == 1 else None


def parameters(
    graph: GraphBuilder, scale: str, zero: str, element_type: int
) -> tuple[np.float32, int] | None:
    """Scale and zero point of a tensor of bytes; 128 is added to a zero point of signed bytes.

    None unless the scale is one positive constant in float32, and the zero point one byte.
    """
    if element_type not in _BYTE:
        return None
    factor, place = number(graph, scale), number(graph, zero) if zero else np.int8(0)
    if factor is None or place is None or factor.dtype != np.float32 or not factor > 0:
        return None
    return np.float32(factor), int(place) + _BYTE[element_type]


def quantized(
    graph: GraphBuilder, given: Scaled, scale: np.float32, zero: int, output: str | None = None
) -> str:
    """Quantize to uint8: one product, one rounding half to even, one clip.

    Rounding is monotone, so bounds of the floats become bounds of the bytes.
    """
    offset = given.offset / np.float64(scale)
    factor = (given.factor / np.float64(scale)).astype(np.float32)
    data = graph.cast(given.name, TensorProto.FLOAT)
    data = _scaled(graph, data, factor, offset)
    data = graph.op("Round", [data])
    if zero:
        data = graph.op("Add", [data, zero])
    least, most = (
        float(np.clip(np.rint(np.float32(bound) / scale) + zero, 0, MOST_OF_BYTE))
        for bound in (given.least, given.most)
    )
    return graph.cast(graph.clip(data, least, most), TensorProto.UINT8, output)


def floats_of(graph: GraphBuilder, given: Scaled | Bytes, output: str) -> None:
    """Compute the float tensor."""
    data = graph.cast(given.name, TensorProto.FLOAT)
    if isinstance(given, Bytes):
        if given.zero:
            data = graph.op("Sub", [data, given.zero])
        graph.op("Mul", [data, given.scale], output)
        return
    data = _scaled(graph, data, given.factor, given.offset)
    if given.least > -np.inf or given.most < np.inf:
        least = None if given.least == -np.inf else given.least
        most = None if given.most == np.inf else given.most
        data = graph.clip(data, least, most)
    graph.op("Identity", [data], output)


def _scaled(graph: GraphBuilder, data: str, factor: np.ndarray, offset: np.ndarray) -> str:
    if np.any(factor != 1):
        data = graph.op("Mul", [data, factor])
    if np.any(offset):
        data = graph.op("Add", [data, offset])
    return data


# Plain operators, for other types, scales along an axis, and scales that are not constant


def floats(graph: GraphBuilder, value: str) -> str:
    """A value cast to float32."""
    if graph.element_type(value) == TensorProto.FLOAT:
        return value
    return graph.fold("Cast", [value], to=TensorProto.FLOAT)


def along(graph: GraphBuilder, vector: str, rank: int, axis: int) -> str:
    """A scale or zero point in float32, reshaped to broadcast along an axis, or to a scalar."""
    shape, vector = graph.shape(vector), floats(graph, vector)
    if shape is None or int(np.prod(shape)) == 1:
        return graph.fold("Reshape", [vector, graph.constant(np.zeros(0), np.int64)])
    if len(shape) != 1:
        return vector
    wanted = [1] * rank
    wanted[axis % rank] = -1
    return graph.fold("Reshape", [vector, graph.constant(wanted, np.int64)])


def centered(graph: GraphBuilder, data: str, zero_point: str, axis: int = 1) -> str:
    """Quantized integers less their zero point, in float32."""
    result = floats(graph, data)
    if not _shifts(graph, zero_point):
        return result
    return graph.fold("Sub", [result, along(graph, zero_point, len(graph.shape(data)), axis)])


def _shifts(graph: GraphBuilder, zero_point: str) -> bool:
    """Whether a zero point is not known to be zero."""
    known = graph.value(zero_point) if zero_point else None
    return bool(zero_point) and (known is None or bool(known.any()))


def write_quantized(graph: GraphBuilder, node: NodeProto) -> bool:
    """Write a ``QuantizeLinear`` in plain operators; False for what is left to TVM's importer."""
    data, scale, zero = optional(node.input, 3)
    given, shape = attributes_of(node), graph.shape(data)
    kind = graph.element_type(zero) if zero else given.get("output_dtype", 0)
    kind, axis = kind or TensorProto.UINT8, given.get("axis", 1)
    if shape is None or given.get("block_size") or kind not in _QUANTIZED:
        return False
    data = graph.cast(data, TensorProto.FLOAT)
    data = graph.op("Round", [graph.op("Div", [data, along(graph, scale, len(shape), axis)])])
    if _shifts(graph, zero):
        data = graph.op("Add", [data, along(graph, zero, len(shape), axis)])
    limits = np.iinfo(_QUANTIZED[kind])
    graph.cast(graph.clip(data, float(limits.min), float(limits.max)), kind, node.output[0])
    return True


def write_dequantized(graph: GraphBuilder, node: NodeProto) -> bool:
    """As `write_quantized` for a ``DequantizeLinear``; constants are dequantized now."""
    data, scale, zero = optional(node.input, 3)
    given, shape = attributes_of(node), graph.shape(data)
    axis, is_known = given.get("axis", 1), graph.element_type(data) in _DEQUANTIZED
    if shape is None or given.get("block_size") or not is_known:
        return False
    factor = along(graph, scale, len(shape), axis)
    result = graph.fold("Mul", [centered(graph, data, zero, axis), factor])
    kind = given.get("output_dtype") or graph.element_type(scale)
    is_float = kind == TensorProto.FLOAT
    operator = "Identity" if is_float else "Cast"
    graph.op(operator, [result], node.output[0], to=None if is_float else kind)
    return True


def dynamic_quantize(graph: GraphBuilder, data: str, outputs: Sequence[str]) -> bool:
    """Quantize to uint8 by the range of the values; outputs are values, scale and zero point."""
    output, scale, zero_point = outputs
    high = graph.op("Max", [graph.reduce("ReduceMax", data, None, 0), 0])
    low = graph.op("Min", [graph.reduce("ReduceMin", data, None, 0), 0])
    width = graph.op("Sub", [high, low])
    empty, one = graph.op("Equal", [width, 0]), graph.constant(np.float32(1))
    graph.op("Where", [empty, one, graph.op("Div", [width, MOST_OF_BYTE])], scale)
    place = graph.op("Round", [graph.op("Neg", [graph.op("Div", [low, scale])])])
    place = graph.clip(place, 0.0, float(MOST_OF_BYTE))
    graph.cast(place, TensorProto.UINT8, zero_point)
    scaled = graph.op("Add", [graph.op("Round", [graph.op("Div", [data, scale])]), place])
    graph.cast(graph.clip(scaled, 0.0, float(MOST_OF_BYTE)), TensorProto.UINT8, output)
    return True


def exact_product(graph: GraphBuilder, left: str, right: str) -> str:
    """A matrix product of whole numbers: in float32 if that holds all sums, otherwise in int32."""
    weights, shape = graph.value(right), graph.shape(right)
    depth = shape[max(0, len(shape) - 2)]
    largest = depth * MOST_OF_BYTE
    if weights is not None:
        largest = np.abs(weights).sum(max(0, weights.ndim - 2)).max(initial=0)
    if largest * MOST_OF_BYTE <= EXACT:
        return graph.op("MatMul", [left, right])
    return graph.op(
        "MatMul", [graph.fold("Cast", [e], to=TensorProto.INT32) for e in (left, right)]
    )

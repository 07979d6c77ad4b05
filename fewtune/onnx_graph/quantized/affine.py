"""Float tensors as scaled and shifted integers, and quantization in plain operators.

Results are rounded half to even, as onnxruntime does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper

from fewtune.onnx_graph.graph import STANDARD, attributes_of, optional
from fewtune.onnx_graph.operators.builder import Deferring, GraphBuilder

MOST_OF_BYTE = 255
# float32 holds every integer up to this.
EXACT = 2**24
_QUANTIZED = {TensorProto.UINT8, TensorProto.INT8, TensorProto.UINT16, TensorProto.INT16}
_SIGNED = 128
_BYTE = {TensorProto.UINT8: 0, TensorProto.INT8: _SIGNED}
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
    bounds = [None if np.isinf(each) else each for each in (given.least, given.most)]
    if bounds != [None, None]:
        data = graph.clip(data, *bounds)
    graph.op("Identity", [data], output)


def _scaled(graph: GraphBuilder, data: str, factor: np.ndarray, offset: np.ndarray) -> str:
    if np.any(factor != 1):
        data = graph.op("Mul", [data, factor])
    if np.any(offset):
        data = graph.op("Add", [data, offset])
    return data


# Plain operators, for other types, scales along an axis, and scales that are not constant


def along(graph: GraphBuilder, vector: str, rank: int, axis: int) -> str:
    """A scale or zero point in float32, reshaped to broadcast along an axis, or to a scalar."""
    shape, vector = graph.shape(vector), graph.cast(vector, TensorProto.FLOAT)
    if shape is None or int(np.prod(shape)) == 1:
        return graph.fold("Reshape", [vector, graph.constant(np.zeros(0), np.int64)])
    if len(shape) != 1:
        return vector
    wanted = [1] * rank
    wanted[axis % rank] = -1
    return graph.fold("Reshape", [vector, graph.constant(wanted, np.int64)])


def centered(graph: GraphBuilder, data: str, zero_point: str, axis: int = 1) -> str:
    """Quantized integers less their zero point, in float32."""
    result = graph.cast(data, TensorProto.FLOAT)
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
    limits = np.iinfo(helper.tensor_dtype_to_np_dtype(kind))
    graph.cast(graph.clip(data, float(limits.min), float(limits.max)), kind, node.output[0])
    return True


def write_dequantized(graph: GraphBuilder, node: NodeProto) -> bool:
    """As `write_quantized` for a ``DequantizeLinear``; constants are dequantized now."""
    data, scale, zero = optional(node.input, 3)
    given, shape = attributes_of(node), graph.shape(data)
    axis, block = given.get("axis", 1), given.get("block_size", 0)
    if shape is None or graph.element_type(data) not in _DEQUANTIZED:
        return False
    if block:
        blocks = [graph.value(name) for name in (scale, zero) if name]
        if any(each is None for each in blocks):
            return False
        elements = [np.repeat(b, block, axis).take(range(shape[axis]), axis) for b in blocks]
        scale, zero = optional([graph.constant(each) for each in elements], 2)
    factor = along(graph, scale, len(shape), axis)
    result = graph.fold("Mul", [centered(graph, data, zero, axis), factor])
    kind = given.get("output_dtype") or graph.element_type(scale)
    is_float = kind == TensorProto.FLOAT
    operator = "Identity" if is_float else "Cast"
    graph.op(operator, [result], node.output[0], to=None if is_float else kind)
    return True


def dynamic_quantize(graph: GraphBuilder, node: NodeProto) -> bool:
    """Write a ``DynamicQuantizeLinear``: to uint8 by the range of the values."""
    (data,), (output, scale, zero_point) = node.input, node.output
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


# Constant weights as signed bytes


def signed_bytes(values: np.ndarray, zero: np.ndarray, axis: int) -> Signed | None:
    """Weights of bytes less their zero points: one, or one along an axis.

    None for other types, and where the zero points are too far apart.
    """
    if values.dtype not in (np.int8, np.uint8):
        return None
    shape = [1] * values.ndim
    shape[axis] = -1
    whole = values.astype(np.int64) - np.asarray(zero, np.int64).reshape(shape)
    low, high = int(whole.min(initial=0)), int(whole.max(initial=0))
    moved = 0 if low >= -_SIGNED and high < _SIGNED else low + _SIGNED
    return Signed((whole - moved).astype(np.int8), moved) if high - moved < _SIGNED else None


class Signed(NamedTuple):
    """Constant weights as signed bytes, plus a number if they do not fit."""

    values: np.ndarray
    moved: int


class Dequantized(NamedTuple):
    """A dequantized constant: (values - zero) * scale.

    Scale and zero point have one element, or one for each index of ``axis``.
    """

    values: np.ndarray
    scale: np.ndarray
    zero: np.ndarray
    axis: int

    def is_along(self, axis: int) -> bool:
        """Whether scale and zero point are one, or one for each index of this axis."""
        rank = max(1, self.values.ndim)
        is_one = self.scale.size == self.zero.size == 1
        return is_one or self.axis % rank == axis % rank


# The pass


Handler = Callable[["Walk", NodeProto], bool]
Plain = Callable[[GraphBuilder, NodeProto], bool]


class Walk(Deferring):
    """Defers float tensors until an operator needs their floats.

    Attributes
    ----------
    floats : dict
        Deferred float tensors, by name.
    weights : dict
        Dequantized constants by name, each with the node that computes it.
    unsigned : dict of (str, bool)
        By name of a quantized tensor, the unsigned tensor that holds it, and whether it is signed.
    """

    def __init__(
        self, model: ModelProto, handlers: Mapping[str, Handler], plain: Mapping[str, Plain]
    ) -> None:
        super().__init__(model)
        self._handlers, self._plain = handlers, plain
        self.floats: dict[str, Bytes | Scaled] = {}
        self.weights: dict[str, tuple[Dequantized, NodeProto]] = {}
        self.unsigned: dict[str, tuple[str, bool]] = {}
        self._written: set[str] = set()

    def takes(self, node: NodeProto) -> bool:
        """Compute a node in integers; False if it has no such form."""
        handler = self._handlers.get(node.op_type) if node.domain in STANDARD else None
        return handler is not None and handler(self, node)

    def add(self, node: NodeProto) -> None:
        """Add a node in floats."""
        plain = self._plain.get(node.op_type) if node.domain in STANDARD else None
        if plain is None or not plain(self.graph, node):
            super().add(node)

    def write(self, name: str) -> None:
        """Add the nodes that compute a deferred tensor, unless the graph has them."""
        if name in self._written:
            return
        graph = self.graph
        if name in self.floats:
            floats_of(graph, self.floats[name], name)
        elif name in self.weights:
            write_dequantized(graph, self.weights[name][1])
        elif name in self.unsigned:
            found, signed = self.unsigned[name]
            if signed:
                wide = graph.cast(found, TensorProto.INT32)
                moved = graph.op("Sub", [wide, graph.constant(np.int32(_SIGNED))])
                graph.cast(moved, TensorProto.INT8, name)
            elif found != name:
                graph.op("Identity", [found], name)
        else:
            return
        self._written.add(name)

    def defer(self, name: str, value: Bytes | Scaled) -> bool:
        """Defer a float tensor; returns True."""
        self.floats[name] = value
        shape = self.graph.shape(name)
        if shape is not None:
            kind = TensorProto.UINT8 if isinstance(value, Bytes) else 0
            self.graph.declare(value.name, kind or self.graph.element_type(value.name), shape)
        return True

    def bytes_of(self, name: str) -> Bytes | None:
        """The bytes that a float tensor was dequantized from, if any."""
        found = self.floats.get(name)
        return found if isinstance(found, Bytes) else None

    def scaled(self, name: str) -> Scaled | None:
        """A deferred float tensor; None if it has more than one reader."""
        found = self.floats.get(name)
        if isinstance(found, Bytes):
            return found.scaled
        # Each of several readers would compute it again.
        return found if len(self.readers.get(name, [])) <= 1 else None

    def unsigned_of(self, name: str, element_type: int) -> str:
        """The unsigned tensor that holds a quantized one, 128 added to signed bytes."""
        if name in self.unsigned:
            return self.unsigned[name][0]
        if element_type == TensorProto.UINT8:
            return name
        graph = self.graph
        wide = graph.cast(name, TensorProto.INT32)
        moved = graph.op("Add", [wide, graph.constant(np.int32(_SIGNED))])
        found = graph.cast(moved, TensorProto.UINT8)
        self.unsigned[name] = (found, True)
        self._written.add(name)
        return found

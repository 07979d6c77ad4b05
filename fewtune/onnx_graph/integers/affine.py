"""Float tensors of a quantised graph as scaled and shifted integer tensors."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from onnx import TensorProto

from fewtune.onnx_graph.operators.builder import GraphBuilder
from fewtune.onnx_graph.operators.quantized.affine import MOST_OF_BYTE

_BYTE = {TensorProto.UINT8: 0, TensorProto.INT8: 128}


@dataclass(frozen=True)
class Bytes:
    """A float tensor as (bytes - zero) * scale.

    Attributes
    ----------
    name : str
        The uint8 tensor.
    scale : float
    zero : int
        0 to 255.
    """

    name: str
    scale: np.float32
    zero: int

    def is_like(self, other: Bytes) -> bool:
        """Whether two tensors have the same scale and zero point."""
        return (self.scale, self.zero) == (other.scale, other.zero)


@dataclass(frozen=True)
class Scaled:
    """A float tensor as tensor * factor + offset, clipped.

    Attributes
    ----------
    name : str
        The tensor, int32 or float32.
    factor, offset : numpy.ndarray
        float64, broadcast to the tensor.
    least, most : float
        Bounds of the result.
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


def scaled_bytes(given: Bytes) -> Scaled:
    """Dequantised bytes as a `Scaled` tensor."""
    scale = np.float64(given.scale)
    return Scaled(given.name, np.array(scale), np.array(-scale * given.zero))


def number(graph: GraphBuilder, name: str) -> np.ndarray | None:
    """The value of a one-element constant; None for any other value."""
    value = graph.value(name) if name else None
    return value.reshape(-1)[0] if value is not None and value.size == 1 else None


def parameters(
    graph: GraphBuilder, scale: str, zero: str, element_type: int
) -> tuple[np.float32, int] | None:
    """Scale and zero point of a tensor of bytes.

    Returns
    -------
    parameters : (float, int) or None
        The zero point is that of unsigned bytes: 128 is added to a signed one. None unless the
        scale is one positive float32 number and the zero point one byte.
    """
    if element_type not in _BYTE:
        return None
    factor, place = number(graph, scale), number(graph, zero) if zero else np.int8(0)
    if factor is None or place is None or factor.dtype != np.float32 or not factor > 0:
        return None
    return np.float32(factor), int(place) + _BYTE[element_type]


def quantised(
    graph: GraphBuilder, given: Scaled, scale: np.float32, zero: int, output: str | None = None
) -> str:
    """Quantise to uint8: one product, one rounding half to even, one clip.

    Rounding is monotone, so bounds of the floats become bounds of the bytes.

    Returns
    -------
    name : str
        The uint8 tensor.
    """
    offset = given.offset / np.float64(scale)
    factor = (given.factor / np.float64(scale)).astype(np.float32)
    data = graph.cast(given.name, TensorProto.FLOAT)
    if np.any(factor != 1):
        data = graph.op("Mul", [data, graph.constant(factor)])
    if np.any(offset):
        data = graph.op("Add", [data, graph.constant(offset.astype(np.float32))])
    data = graph.op("Round", [data])
    if zero:
        data = graph.op("Add", [data, graph.constant(np.float32(zero))])
    least, most = (
        float(np.clip(np.rint(np.float32(bound) / scale) + zero, 0, MOST_OF_BYTE))
        for bound in (given.least, given.most)
    )
    return graph.cast(graph.clip(data, least, most), TensorProto.UINT8, output)


def floats_of(graph: GraphBuilder, given: Scaled | Bytes, output: str | None = None) -> str:
    """Compute the float tensor."""
    if isinstance(given, Bytes):
        data = graph.cast(given.name, TensorProto.FLOAT)
        if given.zero:
            data = graph.op("Sub", [data, graph.constant(np.float32(given.zero))])
        return graph.op("Mul", [data, graph.constant(given.scale)], output)
    data = graph.cast(given.name, TensorProto.FLOAT)
    steps: list[tuple[str, np.ndarray]] = []
    if np.any(given.factor != 1):
        steps.append(("Mul", given.factor))
    if np.any(given.offset):
        steps.append(("Add", given.offset))
    for operator, constant in steps:
        data = graph.op(operator, [data, graph.constant(constant.astype(np.float32))])
    if given.least > -np.inf or given.most < np.inf:
        least = None if given.least == -np.inf else given.least
        most = None if given.most == np.inf else given.most
        data = graph.clip(data, least, most)
    return graph.op("Identity", [data], output) if output else data

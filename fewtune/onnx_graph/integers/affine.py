"""What a quantised graph's floats stand for: whole numbers, scaled and shifted."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from onnx import TensorProto

from fewtune.onnx_graph.operators.builder import GraphBuilder

_BYTE = {TensorProto.UINT8: 0, TensorProto.INT8: 128}
_MOST = 255


@dataclass(frozen=True)
class Bytes:
    """A float tensor that is an unsigned byte tensor less its zero point, times its scale.

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
        """Whether the two have scale and zero point in common."""
        return (self.scale, self.zero) == (other.scale, other.zero)


@dataclass(frozen=True)
class Scaled:
    """A float tensor that is a tensor times a factor plus an offset, within bounds.

    Attributes
    ----------
    name : str
        int32 or float32.
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
        """The same, clipped."""
        return replace(
            self,
            least=min(max(self.least, least), most),
            most=max(min(self.most, most), least),
        )


def scaled_bytes(given: Bytes) -> Scaled:
    """Dequantised bytes as a tensor times a factor."""
    scale = np.float64(given.scale)
    return Scaled(given.name, np.array(scale), np.array(-scale * given.zero))


def number(graph: GraphBuilder, name: str) -> np.ndarray | None:
    """A constant of one element; None of anything else."""
    value = graph.value(name) if name else None
    return value.reshape(-1)[0] if value is not None and value.size == 1 else None


def parameters(
    graph: GraphBuilder, scale: str, zero: str, element_type: int
) -> tuple[np.float32, int] | None:
    """Scale and zero point of a tensor of bytes, counted from 0 where it is of signed ones.

    Returns
    -------
    parameters : (float, int) or None
        None unless both are one float32 number and one byte each.
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
    """Quantise: one product, one rounding half to even, bounds; gives an uint8 tensor.

    Bounds of the floats become bounds of the bytes: rounding keeps the order.
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
        float(np.clip(np.rint(np.float32(bound) / scale) + zero, 0, _MOST))
        for bound in (given.least, given.most)
    )
    return graph.cast(graph.clip(data, least, most), TensorProto.UINT8, output)


def floats_of(graph: GraphBuilder, given: Scaled | Bytes, output: str | None = None) -> str:
    """The float tensor itself."""
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

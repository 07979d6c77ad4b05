"""Quantisation and dequantisation as plain nodes of float32.

Results are rounded half to even, as onnxruntime does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import NodeProto, TensorProto

from fewtune.onnx_graph.graph import attributes_of, optional
from fewtune.onnx_graph.operators.builder import GraphBuilder, Handler, Scope

MOST_OF_BYTE = 255
_ROUND = 11
_INTEGERS = {
    TensorProto.UINT8: np.uint8,
    TensorProto.INT8: np.int8,
    TensorProto.UINT16: np.uint16,
    TensorProto.INT16: np.int16,
}


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


def centred(graph: GraphBuilder, data: str, zero_point: str, axis: int = 1) -> str:
    """Quantised integers less their zero point, in float32."""
    result = floats(graph, data)
    known = graph.value(zero_point) if zero_point else None
    if not zero_point or (known is not None and not known.any()):
        return result
    zero = along(graph, floats(graph, zero_point), len(graph.shape(data)), axis)
    return graph.fold("Sub", [result, zero])


def rounded(
    graph: GraphBuilder, data: str, zero_point: str, element_type: int, output: str, axis: int = 1
) -> str:
    """Round half to even, add the zero point, and clip to the type's range."""
    limits = np.iinfo(_INTEGERS[element_type])
    result = _half_to_even(graph, data)
    known = graph.value(zero_point) if zero_point else None
    if zero_point and (known is None or known.any()):
        zero = along(graph, floats(graph, zero_point), len(graph.shape(data)), axis)
        result = graph.op("Add", [result, zero])
    result = graph.clip(result, float(limits.min), float(limits.max))
    return graph.cast(result, element_type, output)


def _half_to_even(graph: GraphBuilder, data: str) -> str:
    if graph.opset >= _ROUND:
        return graph.op("Round", [data])
    # Above 2**23 float32 holds integers only, so that the addition rounds.
    shift = graph.constant(np.float32(1.5 * 2**23))
    data = graph.clip(data, -float(2**20), float(2**20))
    return graph.op("Sub", [graph.op("Add", [data, shift]), shift])


def _blocks(graph: GraphBuilder, value: str, shape: list[int], axis: int, size: int) -> str:
    """Repeat each scale or zero point along the elements of its block."""
    given = graph.shape(value)
    axis %= len(shape)
    apart = [*given[: axis + 1], 1, *given[axis + 1 :]]
    wide = [*given[: axis + 1], size, *given[axis + 1 :]]
    result = graph.fold("Reshape", [value, graph.constant(apart, np.int64)])
    result = graph.fold("Expand", [result, graph.constant(wide, np.int64)])
    whole = [*given[:axis], given[axis] * size, *given[axis + 1 :]]
    result = graph.fold("Reshape", [result, graph.constant(whole, np.int64)])
    return graph.fold_slice(result, axis, 0, shape[axis]) if whole[axis] > shape[axis] else result


def _quantize(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    data, scale, zero_point = optional(node.input, 3)
    given, shape = attributes_of(node), graph.shape(data)
    element_type = graph.element_type(zero_point) if zero_point else given.get("output_dtype", 0)
    element_type = element_type or TensorProto.UINT8
    # Other types are left to TVM's importer.
    if shape is None or graph.shape(scale) is None or element_type not in _INTEGERS:
        return False
    axis, size = given.get("axis", 1), given.get("block_size", 0)
    if size:
        scale = _blocks(graph, scale, shape, axis, size)
        zero_point = zero_point and _blocks(graph, floats(graph, zero_point), shape, axis, size)
    data = graph.cast(data, TensorProto.FLOAT)
    scale = along(graph, floats(graph, scale), len(shape), axis)
    rounded(graph, graph.op("Div", [data, scale]), zero_point, element_type, node.output[0], axis)
    return True


def _dequantize(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    data, scale, zero_point = optional(node.input, 3)
    given, shape = attributes_of(node), graph.shape(data)
    known = {*_INTEGERS, TensorProto.INT32, TensorProto.INT4, TensorProto.UINT4}
    if shape is None or graph.shape(scale) is None or graph.element_type(data) not in known:
        return False
    axis, size = given.get("axis", 1), given.get("block_size", 0)
    if size:
        scale = _blocks(graph, scale, shape, axis, size)
        zero_point = zero_point and _blocks(graph, floats(graph, zero_point), shape, axis, size)
    kind = given.get("output_dtype") or graph.element_type(scale)
    scale = along(graph, floats(graph, scale), len(shape), axis)
    result = centred(graph, data, zero_point, axis)
    if graph.value(result) is not None and graph.value(scale) is not None:
        # A quantised weight is dequantised now.
        result = graph.fold("Cast", [graph.fold("Mul", [result, scale])], to=kind)
        graph.op("Identity", [result], node.output[0])
    elif kind == TensorProto.FLOAT:
        graph.op("Mul", [result, scale], node.output[0])
    else:
        graph.cast(graph.op("Mul", [result, scale]), kind, node.output[0])
    return True


def _dynamic_quantize(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    (data,) = node.input
    if graph.shape(data) is None:
        return False
    dynamic_quantize(graph, data, node.output)
    return True


def dynamic_quantize(graph: GraphBuilder, data: str, outputs: Sequence[str]) -> None:
    """Quantise to uint8 by the range of the values; outputs are values, scale and zero point."""
    output, scale, zero_point = outputs
    zero, most = graph.constant(np.float32(0)), graph.constant(np.float32(MOST_OF_BYTE))
    high = graph.op("Max", [graph.reduce("ReduceMax", data, None, 0), zero])
    low = graph.op("Min", [graph.reduce("ReduceMin", data, None, 0), zero])
    width = graph.op("Sub", [high, low])
    empty = graph.op("Equal", [width, zero])
    one = graph.constant(np.float32(1))
    graph.op("Where", [empty, one, graph.op("Div", [width, most])], scale)
    place = graph.op("Neg", [graph.op("Div", [low, scale])])
    place = graph.clip(_half_to_even(graph, place), 0.0, float(MOST_OF_BYTE))
    graph.cast(place, TensorProto.UINT8, zero_point)
    scaled = graph.op("Add", [_half_to_even(graph, graph.op("Div", [data, scale])), place])
    graph.cast(graph.clip(scaled, 0.0, float(MOST_OF_BYTE)), TensorProto.UINT8, output)


HANDLERS: dict[tuple[str, str], Handler] = {
    ("", "QuantizeLinear"): _quantize,
    ("", "DequantizeLinear"): _dequantize,
    ("", "DynamicQuantizeLinear"): _dynamic_quantize,
    ("com.microsoft", "QuantizeLinear"): _quantize,
    ("com.microsoft", "DequantizeLinear"): _dequantize,
}

"""ONNX's quantised operators, as products of whole numbers in float32.

Sums of products of 8-bit numbers are exact in float32 up to 2**24, so a kernel of float32 gives
the integers that one of int32 would, and is one that is tuned. Where sums may be larger and the
result is int32, the summed axis is cut into parts that cannot be; their sums are added in int32.
A result that is quantised again is rounded by onnxruntime's own formula: half to even.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import NodeProto, TensorProto

from fewtune.onnx_graph.operators.builder import GraphBuilder, Handler, Scope
from fewtune.onnx_graph.operators.fused import attributes_of, optional

# Up to here float32 has every whole number.
_EXACT = 2**24
_MOST_OF_BYTE = 255
_ROUND = 11
_EVEN = 16
_INTEGERS = {
    TensorProto.UINT8: np.uint8,
    TensorProto.INT8: np.int8,
    TensorProto.UINT16: np.uint16,
    TensorProto.INT16: np.int16,
}


def floats(graph: GraphBuilder, value: str) -> str:
    """A value in float32."""
    if graph.element_type(value) == TensorProto.FLOAT:
        return value
    return graph.fold("Cast", [value], to=TensorProto.FLOAT)


def along(graph: GraphBuilder, vector: str, rank: int, axis: int) -> str:
    """A scale or zero point in float32, shaped to meet an axis; a number has no axes."""
    shape, vector = graph.shape(vector), floats(graph, vector)
    if shape is None or int(np.prod(shape)) == 1:
        return graph.fold("Reshape", [vector, graph.constant(np.zeros(0), np.int64)])
    if len(shape) != 1:
        return vector
    wanted = [1] * rank
    wanted[axis % rank] = -1
    return graph.fold("Reshape", [vector, graph.constant(wanted, np.int64)])


def centred(graph: GraphBuilder, data: str, zero_point: str, axis: int = 1) -> str:
    """Whole numbers in float32, counted from the zero point."""
    result = floats(graph, data)
    known = graph.value(zero_point) if zero_point else None
    if not zero_point or (known is not None and not known.any()):
        return result
    zero = along(graph, floats(graph, zero_point), len(graph.shape(data)), axis)
    return graph.fold("Sub", [result, zero])


def rounded(
    graph: GraphBuilder, data: str, zero_point: str, element_type: int, output: str, axis: int = 1
) -> str:
    """Round half to even, add the zero point, saturate."""
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
    # Above 2**23 float32 has whole numbers only: a sum is rounded to one.
    shift = graph.constant(np.float32(1.5 * 2**23))
    data = graph.clip(data, -float(2**20), float(2**20))
    return graph.op("Sub", [graph.op("Add", [data, shift]), shift])


def _blocks(graph: GraphBuilder, value: str, shape: list[int], axis: int, size: int) -> str:
    """Repeat each scale or zero point of a blocked axis."""
    given = graph.shape(value)
    axis %= len(shape)
    apart = [*given[: axis + 1], 1, *given[axis + 1 :]]
    wide = [*given[: axis + 1], size, *given[axis + 1 :]]
    result = graph.fold("Reshape", [value, graph.constant(apart, np.int64)])
    result = graph.fold("Expand", [result, graph.constant(wide, np.int64)])
    whole = [*given[:axis], given[axis] * size, *given[axis + 1 :]]
    result = graph.fold("Reshape", [result, graph.constant(whole, np.int64)])
    return graph.fold_slice(result, axis, 0, shape[axis]) if whole[axis] > shape[axis] else result


def _quantize(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:  # noqa: ARG001
    data, scale, zero_point = optional(node.input, 3)
    given, shape = attributes_of(node), graph.shape(data)
    element_type = graph.element_type(zero_point) if zero_point else given.get("output_dtype", 0)
    element_type = element_type or TensorProto.UINT8
    # Of other types TVM's importer knows some.
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


def _dequantize(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:  # noqa: ARG001
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
        # A quantised weight: what it stands for is computed now.
        result = graph.fold("Cast", [graph.fold("Mul", [result, scale])], to=kind)
        graph.op("Identity", [result], node.output[0])
    elif kind == TensorProto.FLOAT:
        graph.op("Mul", [result, scale], node.output[0])
    else:
        graph.cast(graph.op("Mul", [result, scale]), kind, node.output[0])
    return True


def _dynamic_quantize(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:  # noqa: ARG001
    (data,) = node.input
    if graph.shape(data) is None:
        return False
    dynamic_quantize(graph, data, node.output)
    return True


def dynamic_quantize(graph: GraphBuilder, data: str, outputs: Sequence[str]) -> None:
    """Quantise to uint8 by the range that the values have: quantised, scale and zero point."""
    output, scale, zero_point = outputs
    zero, most = graph.constant(np.float32(0)), graph.constant(np.float32(_MOST_OF_BYTE))
    high = graph.op("Max", [graph.reduce("ReduceMax", data, None, 0), zero])
    low = graph.op("Min", [graph.reduce("ReduceMin", data, None, 0), zero])
    width = graph.op("Sub", [high, low])
    empty = graph.op("Equal", [width, zero])
    one = graph.constant(np.float32(1))
    graph.op("Where", [empty, one, graph.op("Div", [width, most])], scale)
    place = graph.op("Neg", [graph.op("Div", [low, scale])])
    place = graph.clip(_half_to_even(graph, place), 0.0, float(_MOST_OF_BYTE))
    graph.cast(place, TensorProto.UINT8, zero_point)
    scaled = graph.op("Add", [_half_to_even(graph, graph.op("Div", [data, scale])), place])
    graph.cast(graph.clip(scaled, 0.0, float(_MOST_OF_BYTE)), TensorProto.UINT8, output)


def combined_scale(graph: GraphBuilder, first: str, second: str, result: str) -> str:
    """First times second over result, in float32, as onnxruntime computes it."""
    first, second = floats(graph, first), floats(graph, second)
    return graph.fold("Div", [graph.fold("Mul", [first, second]), result])


def _qlinear_conv(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:  # noqa: ARG001
    data, scale, zero, weight, weight_scale, weight_zero, out_scale, out_zero, bias = optional(
        node.input, 9
    )
    shape = graph.shape(data)
    if shape is None:
        return graph.refuse(node, "reads a tensor whose shape is not known")
    inputs = [centred(graph, data, zero), centred(graph, weight, weight_zero, axis=0)]
    if bias:
        inputs.append(floats(graph, bias))
    sums = graph.op("Conv", inputs, **attributes_of(node))
    scale = along(graph, scale, 0, 0)
    factor = along(
        graph,
        combined_scale(graph, scale, weight_scale, along(graph, out_scale, 0, 0)),
        len(shape),
        1,
    )
    scaled = graph.op("Mul", [sums, factor])
    rounded(graph, scaled, out_zero, graph.element_type(out_zero), node.output[0])
    return True


def _qlinear_matmul(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:  # noqa: ARG001
    left, left_scale, left_zero, right, right_scale, right_zero, scale, zero = node.input
    shapes = graph.shape(left), graph.shape(right)
    if None in shapes:
        return graph.refuse(node, "reads a tensor whose shape is not known")
    sums = graph.op(
        "MatMul", [centred(graph, left, left_zero, -2), centred(graph, right, right_zero, -1)]
    )
    rows = along(graph, left_scale, 2, 0)
    columns = along(graph, right_scale, 1, 0)
    factor = combined_scale(graph, rows, columns, along(graph, scale, 0, 0))
    kind = graph.element_type(zero)
    rounded(graph, graph.op("Mul", [sums, factor]), zero, kind, node.output[0], -1)
    return True


def _parts(graph: GraphBuilder, weight: str, axis: int, extent: int, others: int) -> list[int]:
    """Where to cut a summed axis so that no part's sum can leave what float32 has exactly."""
    known = graph.value(weight)
    if known is None:
        sums = np.full(extent, float(_MOST_OF_BYTE * others))
    else:
        # Over the taps of a convolution's filter; the largest of all columns or filters.
        moved = np.abs(np.moveaxis(known, axis, 0).astype(np.float64))
        taps = moved.reshape(extent, known.shape[0], -1).sum(-1) if others > 1 else moved
        sums = taps.reshape(extent, -1).max(-1)
    largest = np.cumsum([0.0, *(sums * _MOST_OF_BYTE)])
    ends = [0]
    while largest[extent] - largest[ends[-1]] > _EXACT:
        fits = int(np.searchsorted(largest, largest[ends[-1]] + _EXACT, "right")) - 1
        # Extents without divisors have no good schedules.
        even = fits - (fits - ends[-1]) % _EVEN
        ends.append(max(even if even > ends[-1] else fits, ends[-1] + 1))
    return [*ends, extent]


def _summed(graph: GraphBuilder, parts: Sequence[str], output: str) -> bool:
    """Add the sums of parts in int32."""
    whole = [
        graph.cast(part, TensorProto.INT32, output if len(parts) == 1 else None) for part in parts
    ]
    for index, part in enumerate(whole[1:], start=2):
        whole[0] = graph.op("Add", [whole[0], part], output if index == len(whole) else None)
    return True


def _matmul_integer(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:  # noqa: ARG001
    left, right, left_zero, right_zero = optional(node.input, 4)
    shapes = graph.shape(left), graph.shape(right)
    if None in shapes:
        return graph.refuse(node, "reads a tensor whose shape is not known")
    return _summed(
        graph,
        integer_products(
            graph, centred(graph, left, left_zero, -2), centred(graph, right, right_zero, -1)
        ),
        node.output[0],
    )


def integer_products(graph: GraphBuilder, left: str, right: str) -> list[str]:
    """Matrix products of whole numbers, of parts of the summed axis; each is exact."""
    first, second = graph.shape(left), graph.shape(right)
    axis = max(0, len(second) - 2)
    ends = _parts(graph, right, axis, second[axis], 1)
    if len(ends) == 2:  # noqa: PLR2004
        return [graph.op("MatMul", [left, right])]
    return [
        graph.op(
            "MatMul",
            [
                graph.slice(left, len(first) - 1, begin, end),
                graph.fold_slice(right, axis, begin, end),
            ],
        )
        for begin, end in zip(ends, ends[1:], strict=False)
    ]


def _conv_integer(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:  # noqa: ARG001
    data, weight, zero, weight_zero = optional(node.input, 4)
    shape, filters = graph.shape(data), graph.shape(weight)
    if shape is None or filters is None:
        return graph.refuse(node, "reads a tensor whose shape is not known")
    given = attributes_of(node)
    data, weight = centred(graph, data, zero), centred(graph, weight, weight_zero, axis=0)
    ends = [0, filters[1]]
    if given.get("group", 1) == 1:
        ends = _parts(graph, weight, 1, filters[1], int(np.prod(filters[2:])))
    if len(ends) == 2:  # noqa: PLR2004
        return _summed(graph, [graph.op("Conv", [data, weight], **given)], node.output[0])
    return _summed(
        graph,
        [
            graph.op(
                "Conv",
                [graph.slice(data, 1, begin, end), graph.fold_slice(weight, 1, begin, end)],
                **given,
            )
            for begin, end in zip(ends, ends[1:], strict=False)
        ],
        node.output[0],
    )


HANDLERS: dict[tuple[str, str], Handler] = {
    ("", "QuantizeLinear"): _quantize,
    ("", "DequantizeLinear"): _dequantize,
    ("", "DynamicQuantizeLinear"): _dynamic_quantize,
    ("", "QLinearConv"): _qlinear_conv,
    ("", "QLinearMatMul"): _qlinear_matmul,
    ("", "MatMulInteger"): _matmul_integer,
    ("", "ConvInteger"): _conv_integer,
    ("com.microsoft", "QuantizeLinear"): _quantize,
    ("com.microsoft", "DequantizeLinear"): _dequantize,
}

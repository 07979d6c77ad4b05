"""ONNX's quantised products, computed with integers in float32.

Sums of products of 8-bit integers are exact in float32 up to 2**24. So a tuned float32 kernel gives
the same integers as one of int32. If sums may be larger and the result is int32, the summed axis is
split into parts with smaller sums, which are added in int32.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import NodeProto, TensorProto

from fewtune.onnx_graph.graph import attributes_of, optional
from fewtune.onnx_graph.operators.builder import GraphBuilder, Handler, Scope
from fewtune.onnx_graph.operators.quantized.affine import (
    MOST_OF_BYTE,
    along,
    centred,
    floats,
    rounded,
)

# Float32 holds every integer up to this.
_EXACT = 2**24
_EVEN = 16


def combined_scale(graph: GraphBuilder, first: str, second: str, result: str) -> str:
    """Product of two scales over the result's, in float32, in onnxruntime's order."""
    first, second = floats(graph, first), floats(graph, second)
    return graph.fold("Div", [graph.fold("Mul", [first, second]), result])


def _qlinear_conv(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
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


def _qlinear_matmul(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
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
    """Where to split a summed axis so that the sum of each part is exact in float32."""
    known = graph.value(weight)
    if known is None:
        sums = np.full(extent, float(MOST_OF_BYTE * others))
    else:
        # Summed over a filter's taps; the largest of all columns or filters.
        moved = np.abs(np.moveaxis(known, axis, 0).astype(np.float64))
        taps = moved.reshape(extent, known.shape[0], -1).sum(-1) if others > 1 else moved
        sums = taps.reshape(extent, -1).max(-1)
    largest = np.cumsum([0.0, *(sums * MOST_OF_BYTE)])
    ends = [0]
    while largest[extent] - largest[ends[-1]] > _EXACT:
        fits = int(np.searchsorted(largest, largest[ends[-1]] + _EXACT, "right")) - 1
        # Extents with few divisors have no good schedules.
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


def _matmul_integer(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
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
    """Matrix products of integers, one for each part of the summed axis; each is exact."""
    first, second = graph.shape(left), graph.shape(right)
    axis = max(0, len(second) - 2)
    ends = _parts(graph, right, axis, second[axis], 1)
    if len(ends) == 2:
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


def _conv_integer(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    data, weight, zero, weight_zero = optional(node.input, 4)
    shape, filters = graph.shape(data), graph.shape(weight)
    if shape is None or filters is None:
        return graph.refuse(node, "reads a tensor whose shape is not known")
    given = attributes_of(node)
    data, weight = centred(graph, data, zero), centred(graph, weight, weight_zero, axis=0)
    ends = [0, filters[1]]
    if given.get("group", 1) == 1:
        ends = _parts(graph, weight, 1, filters[1], int(np.prod(filters[2:])))
    if len(ends) == 2:
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
    ("", "QLinearConv"): _qlinear_conv,
    ("", "QLinearMatMul"): _qlinear_matmul,
    ("", "MatMulInteger"): _matmul_integer,
    ("", "ConvInteger"): _conv_integer,
}

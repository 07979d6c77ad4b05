"""onnxruntime's own quantised operators (domain com.microsoft).

Activations and poolings are dequantised, computed in floats, and quantised again.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import NodeProto

from fewtune.onnx_graph.graph import attributes_of, optional
from fewtune.onnx_graph.operators.builder import MICROSOFT, GraphBuilder, Handler, Scope
from fewtune.onnx_graph.operators.quantized.affine import along, centred, floats, rounded
from fewtune.onnx_graph.operators.quantized.products import combined_scale


def _dequantized(graph: GraphBuilder, data: str, scale: str, zero: str) -> str:
    return graph.op("Mul", [centred(graph, data, zero), along(graph, scale, 0, 0)])


# Operators that add the zero point before they round: if it is odd, halves are rounded the other
# way.
_ROUNDED_LAST = frozenset({"QLinearAveragePool"})


def _add_quantized(
    graph: GraphBuilder, node: NodeProto, data: str, scale: str, zero: str, like: str
) -> bool:
    kind = graph.element_type(zero) if zero else graph.element_type(like)
    scaled = graph.op("Div", [data, along(graph, scale, 0, 0)])
    if zero and node.op_type in _ROUNDED_LAST:
        scaled = graph.op("Add", [scaled, along(graph, floats(graph, zero), 0, 0)])
        zero = ""
    rounded(graph, scaled, zero, kind, node.output[0])
    return True


def _binary(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """QLinearAdd and QLinearMul."""
    left, left_scale, left_zero, right, right_scale, right_zero, scale, zero = optional(
        node.input, 8
    )
    if graph.shape(left) is None or graph.shape(right) is None:
        return graph.refuse(node, "reads a tensor whose shape is not known")
    operands = [centred(graph, left, left_zero), centred(graph, right, right_zero)]
    factors = [along(graph, each, 0, 0) for each in (left_scale, right_scale, scale)]
    if node.op_type == "QLinearMul":
        product = graph.op("Mul", operands)
        result = graph.op("Mul", [product, combined_scale(graph, *factors)])
    else:
        result = graph.op(
            "Add",
            [
                graph.op("Mul", [operand, graph.fold("Div", [factor, factors[2]])])
                for operand, factor in zip(operands, factors, strict=False)
            ],
        )
    kind = graph.element_type(zero) if zero else graph.element_type(left)
    rounded(graph, result, zero, kind, node.output[0])
    return True


def _unary(
    compute: Callable[[GraphBuilder, NodeProto, str], str],
) -> Handler:
    def expand(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
        data, scale, zero, out_scale, out_zero = optional(node.input, 5)
        if graph.shape(data) is None:
            return graph.refuse(node, "reads a tensor whose shape is not known")
        result = compute(graph, node, _dequantized(graph, data, scale, zero))
        return _add_quantized(graph, node, result, out_scale, out_zero, data)

    return expand


def _sigmoid(graph: GraphBuilder, node: NodeProto, data: str) -> str:
    return graph.op("Sigmoid", [data])


def _leaky_relu(graph: GraphBuilder, node: NodeProto, data: str) -> str:
    return graph.op("LeakyRelu", [data], alpha=attributes_of(node).get("alpha", 0.01))


def _softmax(graph: GraphBuilder, node: NodeProto, data: str) -> str:
    rank = len(graph.shape(data))
    return graph.op("Softmax", [data], axis=attributes_of(node).get("axis", -1) % rank)


def _global_average(graph: GraphBuilder, node: NodeProto, data: str) -> str:
    rank = len(graph.shape(data))
    last = attributes_of(node).get("channels_last", 0)
    axes = range(1, rank - 1) if last else range(2, rank)
    return graph.reduce("ReduceMean", data, list(axes))


def _average(graph: GraphBuilder, node: NodeProto, data: str) -> str:
    given = attributes_of(node)
    last, rank = given.pop("channels_last", 0), len(graph.shape(data))
    if last:
        data = graph.transpose(data, [0, rank - 1, *range(1, rank - 1)])
    data = graph.op("AveragePool", [data], **given)
    return graph.transpose(data, [0, *range(2, rank), 1]) if last else data


def _concat(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    scale, zero, *others = node.input
    parts = [_dequantized(graph, *others[begin : begin + 3]) for begin in range(0, len(others), 3)]
    joined = graph.concat(parts, attributes_of(node)["axis"])
    return _add_quantized(graph, node, joined, scale, zero, others[0])


def _where(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    chosen, first, second, last = node.input[0], node.input[1:4], node.input[4:7], node.input[7:]
    sides = [_dequantized(graph, *side) for side in (first, second)]
    result = graph.op("Where", [chosen, *sides])
    return _add_quantized(graph, node, result, *optional(last, 2), first[0])


def _gemm(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    left, left_scale, left_zero, right, right_scale, right_zero, bias, scale, zero = optional(
        node.input, 9
    )
    if graph.shape(left) is None or graph.shape(right) is None:
        return graph.refuse(node, "reads a tensor whose shape is not known")
    given = attributes_of(node)
    columns = 0 if given.get("transB") else 1
    operands = [centred(graph, left, left_zero), centred(graph, right, right_zero, columns)]
    for index, side in enumerate("AB"):
        if given.get(f"trans{side}"):
            operands[index] = graph.fold("Transpose", [operands[index]], perm=[1, 0])
    sums = graph.op("MatMul", operands)
    if bias:
        sums = graph.op("Add", [sums, floats(graph, bias)])
    alpha = graph.constant(given.get("alpha", 1.0), np.float32)
    factor = graph.fold("Mul", [along(graph, left_scale, 0, 0), right_scale])
    factor = along(graph, graph.fold("Mul", [factor, alpha]), 2, 1)
    if not scale:
        graph.op("Mul", [sums, factor], node.output[0])
        return True
    factor = graph.fold("Div", [factor, along(graph, scale, 0, 0)])
    kind = graph.element_type(zero) if zero else graph.element_type(left)
    rounded(graph, graph.op("Mul", [sums, factor]), zero, kind, node.output[0])
    return True


def _matmul_to_float(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    left, right, left_scale, right_scale, left_zero, right_zero, bias = optional(node.input, 7)
    return _scaled_product(
        graph, node, [left, left_scale, left_zero], [right, right_scale, right_zero], bias
    )


def _dynamic_matmul(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    data, right, right_scale, right_zero, bias = optional(node.input, 5)
    names = [graph.fresh(f"{node.output[0]}_{part}") for part in ("quantized", "scale", "zero")]
    graph.ops("DynamicQuantizeLinear", [data], names)
    return _scaled_product(graph, node, names, [right, right_scale, right_zero], bias)


def _scaled_product(
    graph: GraphBuilder, node: NodeProto, first: list[str], second: list[str], bias: str
) -> bool:
    (left, left_scale, left_zero), (right, right_scale, right_zero) = first, second
    if graph.shape(left) is None or graph.shape(right) is None:
        return graph.refuse(node, "reads a tensor whose shape is not known")
    operands = [centred(graph, left, left_zero, -2), centred(graph, right, right_zero, -1)]
    factor = graph.fold("Mul", [along(graph, left_scale, 2, 0), along(graph, right_scale, 1, 0)])
    product = graph.op("MatMul", operands)
    last = None if bias else node.output[0]
    result = graph.op("Mul", [product, factor], last)
    if bias:
        graph.op("Add", [result, bias], node.output[0])
    return True


def _matmul_bits(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """A product with constant weights of 2, 4 or 8 bits in blocks, which are dequantised."""
    data, packed, scales, zeros, group, bias = optional(node.input, 6)
    given = attributes_of(node)
    bits, block, inner, outer = (given[key] for key in ("bits", "block_size", "K", "N"))
    arrays = [graph.value(name) for name in (packed, scales)]
    zero_array = graph.value(zeros) if zeros else None
    if (
        bits not in (2, 4, 8)
        or group
        or None in [type(a) if a is not None else None for a in arrays]
    ):
        return graph.refuse(node, "has weights that are no constants, or not of 2, 4 or 8 bits")
    blocks = -(-inner // block)
    values = _unpacked(arrays[0], bits).reshape(outer, blocks, -1)[..., :block].astype(np.float32)
    offset = np.full((outer, blocks), 2.0 ** (bits - 1), np.float32)
    if zero_array is not None:
        plain = zero_array.dtype != np.uint8
        unpacked = zero_array if plain else _unpacked(zero_array.reshape(outer, -1), bits)
        offset = unpacked.reshape(outer, -1)[:, :blocks].astype(np.float32)
    weights = (values - offset[..., None]) * arrays[1].reshape(outer, blocks, 1).astype(np.float32)
    weights = weights.reshape(outer, -1)[:, :inner].T.astype(graph.dtype(data))
    operands = [data, graph.constant(np.ascontiguousarray(weights))]
    product = graph.op("MatMul", operands, None if bias else node.output[0])
    if bias:
        graph.op("Add", [product, bias], node.output[0])
    return True


def _gather_blocks(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """A gather from a constant table quantised in blocks, which is dequantised."""
    data, places, scales, zeros = optional(node.input, 4)
    given = attributes_of(node)
    arrays = [graph.value(name) for name in (data, scales)]
    rank = len(graph.shape(data) or ())
    axis = int(given.get("quantize_axis", 1)) % max(1, rank)
    if arrays[0] is None or arrays[1] is None or (zeros and graph.value(zeros) is None):
        return graph.refuse(node, "has a table that is no constant")
    table, zero = arrays[0], graph.value(zeros) if zeros else np.zeros((), np.float32)
    if table.dtype == np.uint8 and axis != rank - 1:
        return graph.refuse(node, "has packed numbers along another axis than the last")
    if table.dtype == np.uint8:
        bits = int(given.get("bits", 4))
        table = _unpacked(table, bits)
        zero = _unpacked(zero, bits) if zeros else np.full((), 2.0 ** (bits - 1), np.float32)
    count = arrays[1].shape[axis]
    if zero.ndim:
        zero = np.take(zero, range(count), axis)
    block, extent = int(given.get("block_size", 128)), table.shape[axis]
    scale, zero = (
        np.take(np.repeat(each.astype(np.float32), block, axis), range(extent), axis)
        if each.ndim
        else each
        for each in (arrays[1], zero)
    )
    floats_of = ((table.astype(np.float32) - zero) * scale).astype(arrays[1].dtype)
    inputs = [graph.constant(floats_of), places]
    graph.op("Gather", inputs, node.output[0], axis=int(given.get("gather_axis", 0)))
    return True


def _attention(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """The attention of `fewtune.onnx_graph.operators.attention`, on dequantised inputs."""
    data, weight, bias, scale, weight_scale, mask, zero, weight_zero, past = optional(node.input, 9)
    inputs = [
        _dequantized(graph, data, scale, zero),
        graph.op("Mul", [centred(graph, weight, weight_zero), along(graph, weight_scale, 2, 1)]),
        bias,
        mask,
        past,
    ]
    plain = NodeProto()
    plain.CopyFrom(node)
    plain.op_type = "Attention"
    plain.input[:] = inputs
    graph.add(plain, scope)
    return True


def _unpacked(packed: np.ndarray, bits: int) -> np.ndarray:
    """Unpack integers of a few bits from bytes, the lowest bits first."""
    parts = [packed >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)]
    return np.stack(parts, -1).reshape(*packed.shape[:-1], -1)


HANDLERS: dict[tuple[str, str], Handler] = {
    (MICROSOFT, "QLinearAdd"): _binary,
    (MICROSOFT, "QLinearMul"): _binary,
    (MICROSOFT, "QLinearSigmoid"): _unary(_sigmoid),
    (MICROSOFT, "QLinearLeakyRelu"): _unary(_leaky_relu),
    (MICROSOFT, "QLinearSoftmax"): _unary(_softmax),
    (MICROSOFT, "QLinearGlobalAveragePool"): _unary(_global_average),
    (MICROSOFT, "QLinearAveragePool"): _unary(_average),
    (MICROSOFT, "QLinearConcat"): _concat,
    (MICROSOFT, "QLinearWhere"): _where,
    (MICROSOFT, "QAttention"): _attention,
    (MICROSOFT, "QGemm"): _gemm,
    (MICROSOFT, "MatMulIntegerToFloat"): _matmul_to_float,
    (MICROSOFT, "DynamicQuantizeMatMul"): _dynamic_matmul,
    (MICROSOFT, "MatMulNBits"): _matmul_bits,
    (MICROSOFT, "GatherBlockQuantized"): _gather_blocks,
}

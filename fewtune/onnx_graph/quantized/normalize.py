"""Normalizes quantized operators to dequantization, the operator in floats, and quantization.

ONNX's ``QLinear`` operators and onnxruntime's own (domain com.microsoft) become this one form,
which `fewtune.onnx_graph.quantized.lift` computes in integers. Weights of fewer than eight
bits are dequantized now.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import NodeProto, TensorProto, helper

from fewtune.onnx_graph.graph import attributes_of, optional
from fewtune.onnx_graph.operators.builder import MICROSOFT, GraphBuilder, Handler, Scope

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
DYNAMIC = "DynamicQuantizeLinear"


def _dequantized(graph: GraphBuilder, names: Sequence[str], axis: int | None = None) -> str:
    """Add a ``DequantizeLinear`` of data, scale and zero point."""
    name, shape = graph.fresh(f"{names[0]}_float"), graph.shape(names[0])
    if shape is not None:
        # ONNX's inference may not know this form in an older operator set.
        graph.declare(name, TensorProto.FLOAT, shape)
    return graph.op(DEQUANTIZE, [each for each in names if each], name, axis=axis)


def _quantized(
    graph: GraphBuilder, node: NodeProto, data: str, scale: str, zero: str, like: str
) -> bool:
    """Add a ``QuantizeLinear`` that writes a node's output, of the type of ``like`` by default."""
    if not zero:
        zero = graph.constant(0, graph.dtype(like))
    graph.op(QUANTIZE, [data, scale, zero], node.output[0])
    return True


def _bias(graph: GraphBuilder, bias: str, *scales: str) -> list[str]:
    """A bias in units of the sums, dequantized; nothing if there is none."""
    scale = scales[0]
    for each in scales[1:]:
        scale = graph.fold("Mul", [scale, each])
    return [_dequantized(graph, [bias, scale], axis=0)] if bias else []


def _convolution(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """QLinearConv; onnxruntime's may have its channels last, but its filters in ONNX's layout."""
    names, given = optional(node.input, 9), attributes_of(node)
    rank = len(graph.shape(names[0]) or ())
    last = given.pop("channels_last", 0)
    if last and not rank:
        return graph.refuse(node, "reads a tensor whose shape is not known")
    data = _dequantized(graph, names[:3])
    inputs = [_channels_first(graph, data, rank) if last else data]
    inputs += [_dequantized(graph, names[3:6], axis=0)]
    inputs += _bias(graph, names[8], names[1], names[4])
    result = graph.op("Conv", inputs, **given)
    result = _channels_last(graph, result, rank) if last else result
    return _quantized(graph, node, result, *names[6:8], names[0])


def _channels_first(graph: GraphBuilder, data: str, rank: int) -> str:
    return graph.transpose(data, [0, rank - 1, *range(1, rank - 1)])


def _channels_last(graph: GraphBuilder, data: str, rank: int, output: str | None = None) -> str:
    return graph.transpose(data, [0, *range(2, rank), 1], output)


def _max_pool(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """NhwcMaxPool, which onnxruntime's optimizer writes."""
    rank = len(graph.shape(node.input[0]) or ())
    if not rank:
        return graph.refuse(node, "reads a tensor whose shape is not known")
    data = _channels_first(graph, node.input[0], rank)
    pooled = graph.op("MaxPool", [data], **attributes_of(node))
    _channels_last(graph, pooled, rank, node.output[0])
    return True


def _matmul(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    names = optional(node.input, 8)
    operands = [_dequantized(graph, names[:3], axis=-2), _dequantized(graph, names[3:6], axis=-1)]
    return _quantized(graph, node, graph.op("MatMul", operands), *names[6:8], names[0])


def _gemm(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    names, given = optional(node.input, 9), attributes_of(node)
    columns = 0 if given.get("transB") else 1
    alpha = graph.constant(given.get("alpha", 1.0), np.float32)
    inputs = [_dequantized(graph, names[:3]), _dequantized(graph, names[3:6], axis=columns)]
    inputs += _bias(graph, names[6], names[1], names[4], alpha)
    if not names[7]:
        graph.op("Gemm", inputs, node.output[0], **given)
        return True
    return _quantized(graph, node, graph.op("Gemm", inputs, **given), *names[7:9], names[0])


def _binary(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    names = optional(node.input, 8)
    operands = [_dequantized(graph, names[:3]), _dequantized(graph, names[3:6])]
    result = graph.op(_plain_name(node), operands)
    return _quantized(graph, node, result, *names[6:8], names[0])


def _unary(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Activations and poolings of means, whose channels may be last."""
    names, shape, given = optional(node.input, 5), graph.shape(node.input[0]), attributes_of(node)
    if shape is None:
        return graph.refuse(node, "reads a tensor whose shape is not known")
    rank, last, operator = len(shape), given.pop("channels_last", 0), _plain_name(node)
    if operator == "Softmax":
        given = {"axis": given.get("axis", -1) % rank}
    data = _dequantized(graph, names[:3])
    data = _channels_first(graph, data, rank) if last else data
    result = graph.op(operator, [data], **given)
    result = _channels_last(graph, result, rank) if last else result
    return _quantized(graph, node, result, *names[3:5], names[0])


def _plain_name(node: NodeProto) -> str:
    return node.op_type.removeprefix("QLinear")


def _concat(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    scale, zero, *others = node.input
    parts = [_dequantized(graph, others[begin : begin + 3]) for begin in range(0, len(others), 3)]
    joined = graph.op("Concat", parts, axis=attributes_of(node)["axis"])
    return _quantized(graph, node, joined, scale, zero, others[0])


def _where(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    names = optional(node.input, 9)
    sides = [_dequantized(graph, names[1:4]), _dequantized(graph, names[4:7])]
    result = graph.op("Where", [names[0], *sides])
    return _quantized(graph, node, result, *names[7:9], names[1])


def _matmul_to_float(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    left, right, left_scale, right_scale, left_zero, right_zero, bias = optional(node.input, 7)
    _product(graph, node, [left, left_scale, left_zero], [right, right_scale, right_zero], bias)
    return True


def _dynamic_matmul(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    data, right, right_scale, right_zero, bias = optional(node.input, 5)
    names = [graph.fresh(f"{node.output[0]}_{part}") for part in ("quantized", "scale", "zero")]
    graph.ops(DYNAMIC, [data], names)
    _product(graph, node, names, [right, right_scale, right_zero], bias)
    return True


def _product(
    graph: GraphBuilder, node: NodeProto, left: Sequence[str], right: Sequence[str], bias: str
) -> None:
    """The product in integers, scaled afterwards: scales of activations are not constant."""
    integers = [left[0], right[0], left[2], right[2]]
    while not integers[-1]:
        integers.pop()
    sums = graph.cast(graph.op("MatMulInteger", integers), TensorProto.FLOAT)
    factor = graph.fold("Mul", [left[1], right[1]])
    result = graph.op("Mul", [sums, factor], None if bias else node.output[0])
    if bias:
        graph.op("Add", [result, bias], node.output[0])


def _attention(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """QAttention as onnxruntime's Attention in floats."""
    data, weight, bias, scale, weight_scale, mask, zero, weight_zero, past = optional(node.input, 9)
    inputs = [
        _dequantized(graph, [data, scale, zero]),
        _dequantized(graph, [weight, weight_scale, weight_zero], axis=1),
        *(bias, mask, past),
    ]
    plain = helper.make_node("Attention", inputs, node.output, node.name, domain=MICROSOFT)
    plain.attribute.extend(node.attribute)
    graph.add(plain, scope)
    return True


def _matmul_bits(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """A product with constant weights of 2, 4 or 8 bits in blocks, which are dequantized."""
    data, packed, scales, zeros, group, bias = optional(node.input, 6)
    given = attributes_of(node)
    bits, block, inner, outer = (given[key] for key in ("bits", "block_size", "K", "N"))
    codes, factors = graph.value(packed), graph.value(scales)
    places = graph.value(zeros) if zeros else None
    if bits not in (2, 4, 8) or group or codes is None or factors is None:
        return graph.refuse(node, "has weights that are no constants, or not of 2, 4 or 8 bits")
    blocks = -(-inner // block)
    codes = _unpacked(codes, bits).reshape(outer, blocks * block)
    offset = np.full((outer, blocks), 2.0 ** (bits - 1), np.float32)
    if places is not None:
        is_packed = places.dtype == np.uint8
        places = _unpacked(places.reshape(outer, -1), bits) if is_packed else places
        offset = places.reshape(outer, -1)[:, :blocks]
    weights = _of_blocks(codes, factors.reshape(outer, blocks), offset, 1, block)
    weights = np.ascontiguousarray(weights[:, :inner].T.astype(graph.dtype(data)))
    inputs = [data, graph.constant(weights)]
    product = graph.op("MatMul", inputs, None if bias else node.output[0])
    if bias:
        graph.op("Add", [product, bias], node.output[0])
    return True


def _blocks(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Dequantize a constant in blocks now."""
    given = attributes_of(node)
    codes, scale, zero = (graph.value(name) for name in optional(node.input, 3))
    if not given.get("block_size") or codes is None or scale is None:
        return False
    zero = np.zeros((), np.float32) if zero is None else zero
    numbers = _of_blocks(codes, scale, zero, given.get("axis", 1), given["block_size"])
    graph.op("Identity", [graph.constant(numbers.astype(scale.dtype))], node.output[0])
    return True


def _of_blocks(
    codes: np.ndarray, scale: np.ndarray, zero: np.ndarray, axis: int, block: int
) -> np.ndarray:
    """Dequantize integers whose scales and zero points are those of blocks along an axis."""
    places = np.arange(codes.shape[axis]) // block
    scale, zero = (
        np.take(each.astype(np.float32), places, axis) if each.ndim else each
        for each in (scale, zero)
    )
    return (codes.astype(np.float32) - zero) * scale


def _unpacked(packed: np.ndarray, bits: int) -> np.ndarray:
    """Unpack integers of a few bits from bytes, the lowest bits first."""
    parts = [packed >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)]
    return np.stack(parts, -1).reshape(*packed.shape[:-1], -1)


def _standard(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Onnxruntime's spelling of ONNX's own operators."""
    graph.op(node.op_type, node.input, node.output[0], **attributes_of(node))
    return True


HANDLERS: dict[tuple[str, str], Handler] = {
    ("", "QLinearConv"): _convolution,
    ("", "QLinearMatMul"): _matmul,
    ("", DEQUANTIZE): _blocks,
    (MICROSOFT, QUANTIZE): _standard,
    (MICROSOFT, DEQUANTIZE): _standard,
    (MICROSOFT, "QLinearConv"): _convolution,
    (MICROSOFT, "NhwcMaxPool"): _max_pool,
    (MICROSOFT, "QGemm"): _gemm,
    (MICROSOFT, "QLinearAdd"): _binary,
    (MICROSOFT, "QLinearMul"): _binary,
    (MICROSOFT, "QLinearSigmoid"): _unary,
    (MICROSOFT, "QLinearLeakyRelu"): _unary,
    (MICROSOFT, "QLinearSoftmax"): _unary,
    (MICROSOFT, "QLinearGlobalAveragePool"): _unary,
    (MICROSOFT, "QLinearAveragePool"): _unary,
    (MICROSOFT, "QLinearConcat"): _concat,
    (MICROSOFT, "QLinearWhere"): _where,
    (MICROSOFT, "QAttention"): _attention,
    (MICROSOFT, "MatMulIntegerToFloat"): _matmul_to_float,
    (MICROSOFT, "DynamicQuantizeMatMul"): _dynamic_matmul,
    (MICROSOFT, "MatMulNBits"): _matmul_bits,
}

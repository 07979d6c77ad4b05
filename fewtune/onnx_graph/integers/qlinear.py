"""QLinear operators, each as dequantisation, the operator on floats, and quantisation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import NodeProto, TensorProto, helper

from fewtune.onnx_graph.graph import attributes_of, optional
from fewtune.onnx_graph.integers import elementwise, products, quantisation
from fewtune.onnx_graph.integers.affine import parameters
from fewtune.onnx_graph.integers.walk import DEQUANTIZE, QUANTIZE, Walk
from fewtune.onnx_graph.integers.weights import Dequantised


def qlinear_convolution(walk: Walk, node: NodeProto) -> bool:
    """A ``QLinearConv``."""
    data, scale, zero, weight, weight_scale, weight_zero, out_scale, out_zero, bias = optional(
        node.input, 9
    )
    first = _operand(walk, [data, scale, zero])
    second = _operand(walk, [weight, weight_scale, weight_zero], axis=0)
    if first is None or second is None or not _is_byte(walk, out_scale, out_zero):
        return False
    inputs = [first, second]
    if bias:
        inputs.append(_whole_bias(walk, bias, scale, weight_scale))
    result = walk.graph.fresh(f"{node.output[0]}_float")
    conv = NodeProto(op_type="Conv", input=inputs, output=[result], attribute=node.attribute)
    return products.convolution(walk, conv) and _quantised_result(
        walk, result, out_scale, out_zero, node
    )


def qlinear_product(walk: Walk, node: NodeProto) -> bool:
    """A ``QLinearMatMul`` with constant weights."""
    first, second = _operand(walk, node.input[:3]), _operand(walk, node.input[3:6], axis=1)
    out_scale, out_zero = node.input[6:8]
    if first is None or second is None or not _is_byte(walk, out_scale, out_zero):
        return False
    result = walk.graph.fresh(f"{node.output[0]}_float")
    product = NodeProto(op_type="MatMul", input=[first, second], output=[result])
    return products.product(walk, product) and _quantised_result(
        walk, result, out_scale, out_zero, node
    )


def qlinear_dense(walk: Walk, node: NodeProto) -> bool:
    """A ``QGemm`` with constant weights."""
    given, names = attributes_of(node), optional(node.input, 9)
    bias, out_scale, out_zero = names[6:9]
    axis = 0 if given.get("transB") else 1
    first, second = _operand(walk, names[:3]), _operand(walk, names[3:6], axis=axis)
    if first is None or second is None or given.get("alpha", 1.0) != 1.0:
        return False
    if out_scale and not _is_byte(walk, out_scale, out_zero):
        return False
    inputs = [first, second]
    if bias:
        inputs.append(_whole_bias(walk, bias, names[1], names[4]))
    result = walk.graph.fresh(f"{node.output[0]}_float") if out_scale else node.output[0]
    dense = helper.make_node("Gemm", inputs, [result], **given)
    return products.dense(walk, dense) and (
        not out_scale or _quantised_result(walk, result, out_scale, out_zero, node)
    )


def qlinear_sum(walk: Walk, node: NodeProto) -> bool:
    """A ``QLinearAdd``."""
    names = optional(node.input, 8)
    parts = [_operand(walk, names[:3]), _operand(walk, names[3:6])]
    if None in parts or not _is_byte(walk, *names[6:8]):
        return False
    result = walk.graph.fresh(f"{node.output[0]}_float")
    summed = NodeProto(op_type="Add", input=parts, output=[result])
    return elementwise.added(walk, summed) and _quantised_result(walk, result, *names[6:8], node)


def qlinear_average(walk: Walk, node: NodeProto) -> bool:
    """A ``QLinearGlobalAveragePool`` in channels-first layout."""
    names = optional(node.input, 5)
    first = _operand(walk, names[:3])
    last = attributes_of(node).get("channels_last", 0)
    if first is None or last or not _is_byte(walk, *names[3:5]):
        return False
    result = walk.graph.fresh(f"{node.output[0]}_float")
    pool = NodeProto(op_type="GlobalAveragePool", input=[first], output=[result])
    return elementwise.average(walk, pool) and _quantised_result(walk, result, *names[3:5], node)


def qlinear_concatenation(walk: Walk, node: NodeProto) -> bool:
    """A ``QLinearConcat``."""
    scale, zero, *others = node.input
    taken = [_operand(walk, others[begin : begin + 3]) for begin in range(0, len(others), 3)]
    if None in taken or not _is_byte(walk, scale, zero):
        return False
    result = walk.graph.fresh(f"{node.output[0]}_float")
    quantizer = NodeProto(op_type=QUANTIZE, input=[result, scale, zero], output=node.output)
    walk.readers[result] = [quantizer]
    axis = attributes_of(node)["axis"]
    joined = helper.make_node("Concat", taken, [result], axis=axis)
    return elementwise.concatenation(walk, joined) and quantisation.quantize(walk, quantizer)


def _is_byte(walk: Walk, scale: str, zero: str) -> bool:
    kind = walk.graph.element_type(zero) if zero else TensorProto.UINT8
    return parameters(walk.graph, scale, zero, kind) is not None


def _operand(walk: Walk, names: Sequence[str], axis: int = 1) -> str | None:
    """Name of a dequantised operand, which is deferred; None if it is not supported."""
    data = names[0]
    name = walk.graph.fresh(f"{data}_float")
    inputs = [each for each in names if each]
    node = helper.make_node(DEQUANTIZE, inputs, [name], axis=axis)
    shape = walk.graph.shape(data)
    if shape is not None:
        walk.graph.declare(name, TensorProto.FLOAT, shape)
    return name if quantisation.dequantize(walk, node) else None


def _whole_bias(walk: Walk, bias: str, scale: str, weight_scale: str) -> str:
    factors = [walk.graph.value(each) for each in (scale, weight_scale)]
    name = walk.graph.fresh(f"{bias}_float")
    values = walk.graph.value(bias)
    if values is None or any(each is None for each in factors):
        return bias
    factor = (factors[0].reshape(-1) * factors[1].reshape(-1)).astype(np.float32)
    found = Dequantised(values, factor, np.zeros(1, np.int32), 0)
    node = helper.make_node(DEQUANTIZE, [bias, walk.graph.constant(factor)], [name], axis=0)
    walk.weights[name] = (found, node)
    return name


def _quantised_result(walk: Walk, name: str, scale: str, zero: str, node: NodeProto) -> bool:
    shape = walk.graph.shape(node.output[0])
    if shape is not None:
        walk.graph.declare(name, TensorProto.FLOAT, shape)
    quantizer = NodeProto(op_type=QUANTIZE, input=[each for each in (name, scale, zero) if each])
    quantizer.output[:] = [node.output[0]]
    return quantisation.quantize(walk, quantizer)

"""QuantizeLinear and DequantizeLinear."""

from __future__ import annotations

import numpy as np
from onnx import NodeProto, TensorProto

from fewtune.onnx_graph.graph import attributes_of, optional
from fewtune.onnx_graph.integers.affine import Bytes, parameters, quantised
from fewtune.onnx_graph.integers.walk import QUANTIZE, Walk
from fewtune.onnx_graph.integers.weights import Dequantised


def dequantize(walk: Walk, node: NodeProto) -> bool:
    """Defer the result of a ``DequantizeLinear``."""
    graph = walk.graph
    data, scale, zero = optional(node.input, 3)
    given = attributes_of(node)
    if given.get("block_size") or given.get("output_dtype", 1) != TensorProto.FLOAT:
        return False
    values = graph.value(data)
    if values is not None:
        return _dequantised_weights(walk, node, values, scale, zero, given)
    # The zero point tells the type: ONNX's inference knows no outputs of onnxruntime's operators.
    kind = graph.element_type(zero if zero else data)
    found = parameters(graph, scale, zero, kind)
    if found is None:
        return False
    walk.defer(node.output[0], Bytes(walk.unsigned_of(data, kind), *found))
    return True


def _dequantised_weights(
    walk: Walk, node: NodeProto, values: np.ndarray, scale: str, zero: str, given: dict[str, object]
) -> bool:
    factors = walk.graph.value(scale)
    zeros = walk.graph.value(zero) if zero else np.zeros(1, values.dtype)
    if factors is None or zeros is None or factors.dtype != np.float32:
        return False
    if any(each.size != 1 and each.ndim != 1 for each in (factors, zeros)):
        return False
    found = Dequantised(values, factors, zeros, int(given.get("axis", 1)))
    walk.weights[node.output[0]] = (found, node)
    return True


def quantize(walk: Walk, node: NodeProto) -> bool:
    """Quantise a tensor; bytes that were dequantised with the same parameters are reused."""
    graph = walk.graph
    data, scale, zero = optional(node.input, 3)
    given = attributes_of(node)
    kind = graph.element_type(zero) if zero else given.get("output_dtype", 0)
    found = parameters(graph, scale, zero, kind or TensorProto.UINT8)
    if found is None or given.get("block_size") or graph.element_type(data) not in (0, 1):
        return False
    signed = kind == TensorProto.INT8
    output = node.output[0]
    name = graph.fresh(f"{output}_unsigned") if signed else output
    same, scaled = walk.bytes_of(data), walk.scaled(data)
    if same is not None and same.is_like(Bytes("", *found)):
        walk.unsigned[output] = (same.name, signed)
        return True
    if scaled is None and walk.only_read_by_quantisers(data):
        scaled = walk.floats.get(data)
    if scaled is not None:
        quantised(graph, scaled, *found, name)
    else:
        walk.write(data)
        factor, place = graph.constant(found[0]), graph.constant(np.uint8(found[1]))
        graph.op(QUANTIZE, [data, factor, place], name)
    shape = graph.shape(output)
    if shape is not None:
        graph.declare(name, TensorProto.UINT8, shape)
    walk.unsigned[output] = (name, signed)
    return True

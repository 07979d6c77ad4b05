"""Lifts a quantized graph to integers: the operators between two quantizations fuse to a kernel.

One pass over the graph represents each float tensor by integers (`affine`), and writes its floats
only if an operator needs them. A convolution or product of dequantized bytes becomes
``ConvInteger`` or ``MatMulInteger`` of unsigned activations and signed weights. Scales and biases
follow as elementwise operators, which TVM fuses into it. Maxima, copies and views apply to the
bytes. All other operators stay in floats, between quantizations in plain operators.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto

from fewtune.onnx_graph.graph import attributes_of, optional
from fewtune.onnx_graph.operators.builder import GraphBuilder
from fewtune.onnx_graph.quantized import products
from fewtune.onnx_graph.quantized.affine import (
    Bytes,
    Dequantized,
    Handler,
    Plain,
    Scaled,
    Walk,
    dynamic_quantize,
    number,
    parameters,
    quantized,
    write_dequantized,
    write_quantized,
)
from fewtune.onnx_graph.quantized.normalize import DEQUANTIZE, DYNAMIC, QUANTIZE

# A model without any of these is not quantized.
_QUANTIZED = frozenset({QUANTIZE, DEQUANTIZE, DYNAMIC, "ConvInteger", "MatMulInteger"})


def lift(model: ModelProto, kernels: bool = True) -> ModelProto:
    """Rewrite a quantized model in integers.

    Parameters
    ----------
    model : ModelProto
        With static and inferred shapes, of operator set 11 or later, normalized
        (`fewtune.onnx_graph.quantized.normalize`); it is left as it is.
    kernels : bool
        Whether there are kernels for products of bytes; otherwise all is written in floats.

    Returns
    -------
    model : ModelProto
        Same inputs and outputs, equal up to the last rounding; the model itself if it is not
        quantized. All ``ConvInteger`` and ``MatMulInteger`` in it have unsigned data with a
        constant zero point or none, and signed constant weights.
    """
    model = gather_bytes(model) if kernels else model
    if not any(node.op_type in _QUANTIZED for node in model.graph.node):
        return model
    return Walk(model, _HANDLERS if kernels else {}, _PLAIN).rewritten()


def _dequantize(walk: Walk, node: NodeProto) -> bool:
    """Defer the result of a ``DequantizeLinear``."""
    graph, given = walk.graph, attributes_of(node)
    data, scale, zero = optional(node.input, 3)
    if given.get("block_size") or given.get("output_dtype", 1) != TensorProto.FLOAT:
        return False
    values = graph.value(data)
    if values is not None:
        factors = graph.value(scale)
        zeros = graph.value(zero) if zero else np.zeros(1, values.dtype)
        if factors is None or zeros is None or factors.dtype != np.float32:
            return False
        if any(each.size != 1 and each.ndim != 1 for each in (factors, zeros)):
            return False
        found = Dequantized(values, factors, zeros, int(given.get("axis", 1)))
        walk.weights[node.output[0]] = (found, node)
        return True
    # The zero point tells the type of tensors that ONNX's inference does not know.
    kind = graph.element_type(zero if zero else data)
    place = parameters(graph, scale, zero, kind)
    return place is not None and walk.defer(
        node.output[0], Bytes(walk.unsigned_of(data, kind), *place)
    )


def _quantize(walk: Walk, node: NodeProto) -> bool:
    """Quantize a tensor; bytes that were dequantized with the same parameters are reused."""
    graph, given, output = walk.graph, attributes_of(node), node.output[0]
    data, scale, zero = optional(node.input, 3)
    kind = (graph.element_type(zero) if zero else given.get("output_dtype")) or TensorProto.UINT8
    found = parameters(graph, scale, zero, kind)
    if found is None or given.get("block_size") or graph.element_type(data) not in (0, 1):
        return False
    signed = kind == TensorProto.INT8
    name = graph.fresh(f"{output}_unsigned") if signed else output
    same, scaled = walk.bytes_of(data), walk.scaled(data)
    if same is not None and same.is_like(Bytes("", *found)):
        walk.unsigned[output] = (same.name, signed)
        return True
    if scaled is None and all(each.op_type == QUANTIZE for each in walk.readers[data]):
        scaled = walk.floats.get(data)
    if scaled is None:
        # As a factor, the scale's inverse would round otherwise.
        walk.write(data)
        ratio = graph.op("Div", [data, graph.constant(found[0])])
        scaled, found = Scaled(ratio, np.ones(()), np.zeros(())), (np.float32(1), found[1])
    quantized(graph, scaled, *found, name)
    shape = graph.shape(output)
    if shape is not None:
        graph.declare(name, TensorProto.UINT8, shape)
    walk.unsigned[output] = (name, signed)
    return True


def _bounded(walk: Walk, node: NodeProto, least: float, most: float) -> bool:
    """Clip a deferred tensor: bounds of floats become bounds of bytes."""
    found = walk.scaled(node.input[0])
    return found is not None and walk.defer(node.output[0], found.bounded(least, most))


def _clip(walk: Walk, node: NodeProto) -> bool:
    """A ``Clip`` with constant bounds."""
    bounds: list[float] = []
    for name, none in zip(optional(node.input[1:], 2), (-np.inf, np.inf), strict=True):
        value = number(walk.graph, name) if name else none
        if value is None or np.isnan(value):
            return False
        bounds.append(float(value))
    return bounds[0] <= bounds[1] and _bounded(walk, node, *bounds)


def _sum(walk: Walk, node: NodeProto) -> bool:
    """The sum of two dequantized tensors, in units of the second one's scale."""
    first, second, *others = [walk.bytes_of(name) for name in [*node.input, ""]]
    if first is None or second is None or len(others) > 1:
        return False
    graph = walk.graph
    data = [graph.cast(each.name, TensorProto.FLOAT) for each in (first, second)]
    ratio = np.float64(first.scale) / np.float64(second.scale)
    if ratio != 1:
        data[0] = graph.op("Mul", [data[0], graph.constant(np.float32(ratio))])
    total = graph.op("Add", data)
    offset = -sum(np.float64(each.scale) * each.zero for each in (first, second))
    scaled = Scaled(total, np.array(np.float64(second.scale)), np.array(offset))
    return walk.defer(node.output[0], scaled)


def _moved(walk: Walk, node: NodeProto) -> bool:
    """An operator that only moves elements, or takes the largest: applied to the bytes."""
    found = walk.bytes_of(node.input[0])
    if found is None or not all(node.output) or (node.op_type == "MaxPool" and node.output[1:]):
        return False
    if node.op_type == "Resize" and attributes_of(node).get("mode", b"nearest") != b"nearest":
        return False
    for name in node.input[1:]:
        walk.write(name)
    return _on_bytes(walk, node, [found.name, *node.input[1:]], found)


def _on_bytes(walk: Walk, node: NodeProto, inputs: list[str], like: Bytes) -> bool:
    """Apply an operator to bytes; its results are bytes of the same scale."""
    outputs = [walk.graph.fresh(f"{name}_bytes") for name in node.output]
    walk.graph.ops(node.op_type, inputs, outputs, **attributes_of(node))
    for name, output in zip(node.output, outputs, strict=True):
        walk.defer(name, replace(like, name=output))
    return True


def _concatenation(walk: Walk, node: NodeProto) -> bool:
    """Concatenate bytes of one scale, or of several if the result is only quantized again."""
    parts = [walk.floats.get(name) for name in node.input]
    like = parts[0]
    if isinstance(like, Bytes) and all(isinstance(p, Bytes) and p.is_like(like) for p in parts):
        return _on_bytes(walk, node, [part.name for part in parts], like)
    readers = walk.readers.get(node.output[0], [])
    if len(readers) != 1 or readers[0].op_type != QUANTIZE:
        return False
    _, scale, zero = optional(readers[0].input, 3)
    kind = walk.graph.element_type(zero) if zero else TensorProto.UINT8
    found = parameters(walk.graph, scale, zero, kind)
    scaled = [walk.scaled(name) for name in node.input]
    if found is None or any(part is None for part in scaled):
        return False
    like = Bytes("", *found)
    names = [
        part.name
        if isinstance(part, Bytes) and part.is_like(like)
        else quantized(walk.graph, each, *found)
        for part, each in zip(parts, scaled, strict=True)
    ]
    return _on_bytes(walk, node, names, like)


def _average(walk: Walk, node: NodeProto) -> bool:
    """The mean of bytes, scaled afterwards."""
    found, given = walk.bytes_of(node.input[0]), attributes_of(node)
    # Zeros of the padding that are counted are not the bytes' zero point.
    if found is None or (
        given.get("count_include_pad") and found.zero and any(given.get("pads", []))
    ):
        return False
    graph = walk.graph
    for name in node.input[1:]:
        walk.write(name)
    data = graph.cast(found.name, TensorProto.FLOAT)
    mean = graph.op(node.op_type, [data, *node.input[1:]], **given)
    return walk.defer(node.output[0], replace(found.scaled, name=mean))


# Operators that move elements of their first input, or take the largest.
_MOVERS = ("MaxPool", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Identity")
_MOVERS += ("Slice", "Split", "DepthToSpace", "SpaceToDepth", "Resize")
_HANDLERS: dict[str, Handler] = {
    DEQUANTIZE: _dequantize,
    QUANTIZE: _quantize,
    "Conv": products.product,
    "MatMul": products.product,
    "Gemm": products.product,
    "MatMulInteger": products.integer_operator,
    "ConvInteger": products.integer_operator,
    "Relu": lambda walk, node: _bounded(walk, node, 0.0, np.inf),
    "Clip": _clip,
    "Add": _sum,
    "Sum": _sum,
    "Concat": _concatenation,
    "AveragePool": _average,
    "GlobalAveragePool": _average,
    "ReduceMean": _average,
    **dict.fromkeys(_MOVERS, _moved),
}
# How operators without a form in integers are written.
_PLAIN: dict[str, Plain] = {
    DEQUANTIZE: write_dequantized,
    QUANTIZE: write_quantized,
    DYNAMIC: dynamic_quantize,
    "MatMulInteger": products.integer_operator_in_floats,
    "ConvInteger": products.integer_operator_in_floats,
}


_ELEMENTWISE = {"Add", "Cast", "DequantizeLinear", "Mul", "Sub"}
_BYTES = {TensorProto.INT8, TensorProto.UINT8}


def gather_bytes(model: ModelProto) -> ModelProto:
    """Let each ``Gather`` of rows read the bytes that a constant table is computed from.

    An embedding of bytes is half of a small int8 transformer. Folded to floats, it would take four
    times its bytes.

    Factors and zero points of rows are gathered, too, so results are equal bit by bit. The model
    has inferred shapes; it is the result if there is no such table.
    """
    makers = {name: node for node in model.graph.node for name in node.output}
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    graph, is_changed = GraphBuilder(model, {}), False

    def types(name: str) -> set[int]:
        """Of the constants that a table is computed from; none if its rows cannot be."""
        if name in constants:
            return {constants[name].data_type}
        node = makers.get(name)
        if node is None or node.op_type not in _ELEMENTWISE:
            return set()
        if node.op_type == "DequantizeLinear" and graph.shape(node.input[1]) not in ([], [1]):
            return set()
        each = [types(given) for given in node.input]
        return set().union(*each) if all(each) else set()

    def rows(name: str, places: str, rank: int, output: str | None = None) -> str:
        """Compute some rows of a table."""
        if name not in constants:
            node = makers[name]
            inputs = [rows(given, places, rank) for given in node.input]
            return graph.op(node.op_type, inputs, output, **attributes_of(node))
        dims = constants[name].dims
        # What all rows have in common broadcasts to them as it is.
        is_common = len(dims) < rank or dims[0] == 1
        return name if is_common else graph.op("Gather", [name, places], axis=0)

    for node in model.graph.node:
        if node.op_type == "Gather" and not attributes_of(node).get("axis", 0):
            table, places = node.input
            shape = graph.shape(table)
            if shape and graph.shape(places) and table in makers and _BYTES & types(table):
                rows(table, places, len(shape), node.output[0])
                is_changed = True
                continue
        graph.add(node, {})
    return graph.model() if is_changed else model

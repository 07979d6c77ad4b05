"""Products, activations and attention that onnxruntime's optimiser fuses (com.microsoft)."""

from __future__ import annotations

import math

import numpy as np
from onnx import NodeProto, TensorProto

from fewtune.onnx_graph.graph import attributes_of, optional
from fewtune.onnx_graph.operators.builder import MICROSOFT, GraphBuilder, Handler, Scope

# Of FusedConv and FusedGemm.
_ACTIVATIONS = frozenset(
    {"Clip", "Elu", "HardSigmoid", "Identity", "LeakyRelu", "Relu", "Sigmoid", "Softplus", "Tanh"}
)


def _fused_product(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """A Conv or a Gemm with an activation; a Conv may add a tensor before it."""
    given = attributes_of(node)
    name = given.pop("activation", b"Identity").decode()
    parameters = [*given.pop("activation_params", [])]
    names = ("activation_alpha", "activation_beta", "activation_gamma")
    parameters += [given.pop(each) for each in names if each in given]
    if name not in _ACTIVATIONS:
        return graph.refuse(node, f"has an activation that is not known: {name}")
    inputs, added = [each for each in node.input[:3] if each], [*node.input[3:]]
    result = graph.op(node.op_type.removeprefix("Fused"), inputs, **given)
    if added:
        result = graph.op("Add", [result, *added])
    if name == "Clip":
        graph.op("Identity", [graph.clip(result, *parameters)], node.output[0])
    else:
        named = dict(zip(("alpha", "beta"), parameters, strict=False))
        graph.op(name, [result], node.output[0], **named)
    return True


def _fused_matmul(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    given = attributes_of(node)
    operands = []
    for name, side in zip(node.input[:2], "AB", strict=True):
        shape = graph.shape(name)
        if shape is None or given.get(f"transBatch{side}"):
            return graph.refuse(node, "reads a tensor of unknown shape, or moves its first axis")
        order = list(range(len(shape)))
        if given.get(f"trans{side}") and len(shape) > 1:
            order[-2:] = order[:-3:-1]
        operands.append(
            name if order == sorted(order) else graph.fold("Transpose", [name], perm=order)
        )
    alpha = given.get("alpha", 1.0)
    if alpha == 1.0:
        graph.op("MatMul", operands, node.output[0])
        return True
    graph.op("Mul", [graph.op("MatMul", operands), alpha], node.output[0])
    return True


def _gelu(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Gelu, FastGelu with a hyperbolic tangent, and BiasGelu, which adds a vector first."""
    data, bias = optional(node.input, 2)
    data = graph.op("Add", [data, bias]) if bias else data
    if node.op_type == "FastGelu":
        factor, square = math.sqrt(2 / math.pi), graph.op("Mul", [data, data])
        slope = graph.op("Add", [graph.op("Mul", [square, factor * 0.044715]), factor])
        function = graph.op("Tanh", [graph.op("Mul", [data, slope])])
    else:
        function = graph.op("Erf", [graph.op("Mul", [data, math.sqrt(0.5)])])
    half, gate = graph.op("Mul", [data, 0.5]), graph.op("Add", [function, 1.0])
    graph.op("Mul", [half, gate], node.output[0])
    return True


def _quick_gelu(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    (data,) = node.input
    alpha = attributes_of(node).get("alpha", 1.702)
    gate = graph.op("Sigmoid", [graph.op("Mul", [data, alpha])])
    graph.op("Mul", [data, gate], node.output[0])
    return True


_HEADS_FIRST = 4
_MASKED = -10000.0


def _attention(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Self-attention: one product gives queries, keys and values."""
    data, weight, bias, mask, past, added = optional(node.input, 6)
    given = attributes_of(node)
    shape, columns = graph.shape(data), graph.shape(weight)
    if shape is None or columns is None or past or any(node.output[1:]) or given.get("do_rotary"):
        return graph.refuse(node, "rotates its inputs, has a past, or an input of unknown shape")
    sizes = list(given.get("qkv_hidden_sizes") or [columns[1] // 3] * 3)
    products = graph.op("MatMul", [data, weight])
    if bias:
        products = graph.op("Add", [products, bias])
    ends = np.cumsum([0, *sizes]).tolist()
    parts = [graph.slice(products, 2, ends[i], ends[i + 1]) for i in range(3)]
    heads = [_by_heads(graph, part, given["num_heads"]) for part in parts]
    return _attend(graph, node, tuple(heads), mask, added)


def _multi_head(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Attention of queries, keys and values that are separate inputs."""
    query, key, value, bias, mask, added, *pasts = optional(node.input, 8)
    heads = attributes_of(node)["num_heads"]
    shapes = [graph.shape(name) for name in (query, key, value)]
    if None in shapes or len(shapes[0]) != 3:
        return graph.refuse(node, "has its inputs packed in one tensor, which is not supported")
    parts = []
    begin = 0
    for name, shape in zip((query, key, value), shapes, strict=True):
        if len(shape) == _HEADS_FIRST:
            parts.append(name)
            continue
        if bias:
            offset = graph.slice(bias, 0, begin, begin + shape[2])
            begin += shape[2]
            name = graph.op("Add", [name, offset])
        parts.append(_by_heads(graph, name, heads))
    for index, past in enumerate(pasts, start=1):
        if past:
            parts[index] = graph.concat([past, parts[index]], 2)
    for part, present in zip(parts[1:], optional(node.output, 3)[1:], strict=True):
        if present:
            graph.op("Identity", [part], present)
    return _attend(graph, node, tuple(parts), mask, added)


def _by_heads(graph: GraphBuilder, data: str, heads: int) -> str:
    """From (batch, length, heads x size) to (batch, heads, length, size)."""
    batch, length, width = graph.shape(data)
    apart = graph.reshape(data, [batch, length, heads, width // heads])
    return graph.transpose(apart, [0, 2, 1, 3])


def _attend(
    graph: GraphBuilder, node: NodeProto, parts: tuple[str, ...], mask: str, added: str
) -> bool:
    """Write attention with the masks of these operators into a node's first output."""
    batch, _, length, _ = graph.shape(parts[0])
    sizes = [batch, length, graph.shape(parts[1])[2]]
    offsets = _offsets(graph, node, mask, sizes, graph.dtype(parts[0]))
    if offsets is None:
        return graph.refuse(node, "has a mask of a form that is not supported")

    query, key, value = parts
    scores = graph.op("MatMul", [query, graph.transpose(key, [0, 1, 3, 2])])
    factor = attributes_of(node).get("scale") or 1 / math.sqrt(graph.shape(query)[3])
    scores = graph.op("Mul", [scores, factor])
    for offset in filter(None, [*offsets, added]):
        scores = graph.op("Add", [scores, offset])
    mixed = graph.op("MatMul", [graph.op("Softmax", [scores], axis=3), value])
    mixed = graph.transpose(mixed, [0, 2, 1, 3])
    _, _, heads, size = graph.shape(mixed)
    graph.reshape(mixed, [batch, length, heads * size], node.output[0])
    return True


def _offsets(
    graph: GraphBuilder, node: NodeProto, mask: str, sizes: list[int], dtype: np.dtype
) -> list[str] | None:
    """Biases that mask scores; None for a mask of an unknown form."""
    batch, length, total = sizes
    given, offsets = attributes_of(node), []
    if given.get("unidirectional"):
        seen = np.tril(np.ones((length, total), bool), total - length)
        # onnxruntime masks the future by the lowest number, whatever `mask_filter_value` is.
        offsets.append(graph.constant(np.where(seen, 0, np.finfo(dtype).min), dtype))
    if not mask:
        return offsets
    shape = graph.shape(mask)
    if shape not in ([batch, total], [batch, length, total]):
        return None
    away = given.get("mask_filter_value", _MASKED)
    none, away = (graph.constant(each, dtype) for each in (0.0, away))
    offset = graph.op("Where", [graph.cast(mask, TensorProto.BOOL), none, away])
    rows = length if len(shape) > 2 else 1
    return [*offsets, graph.reshape(offset, [batch, 1, rows, total])]


HANDLERS: dict[str, Handler] = {
    f"{MICROSOFT}.Attention": _attention,
    f"{MICROSOFT}.MultiHeadAttention": _multi_head,
    f"{MICROSOFT}.FusedConv": _fused_product,
    f"{MICROSOFT}.FusedGemm": _fused_product,
    f"{MICROSOFT}.FusedMatMul": _fused_matmul,
    f"{MICROSOFT}.TransposeMatMul": _fused_matmul,
    **{f"{MICROSOFT}.{kind}Gelu": _gelu for kind in ("", "Bias", "Fast")},
    f"{MICROSOFT}.QuickGelu": _quick_gelu,
}

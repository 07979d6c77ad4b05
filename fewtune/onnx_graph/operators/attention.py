"""Attention as onnxruntime's transformer optimiser fuses it (domain com.microsoft)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto, TensorProto

from fewtune.onnx_graph.graph import attributes_of, optional
from fewtune.onnx_graph.operators.builder import MICROSOFT, GraphBuilder, Handler, Scope

HEADS_FIRST = 4
_MASKED = -10000.0


@dataclass
class _Settings:
    heads: int
    scale: float | None
    filtered: float
    causal: bool

    @classmethod
    def of(cls, node: NodeProto) -> _Settings:
        given = attributes_of(node)
        return cls(
            given["num_heads"],
            given.get("scale") or None,
            given.get("mask_filter_value", _MASKED),
            bool(given.get("unidirectional")),
        )


def _attention(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Self-attention: one product gives queries, keys and values."""
    data, weight, bias, mask, past, added = optional(node.input, 6)
    given, settings = attributes_of(node), _Settings.of(node)
    shape, columns = graph.shape(data), graph.shape(weight)
    if shape is None or columns is None or given.get("do_rotary"):
        return graph.refuse(node, "rotates its inputs, or reads a tensor of unknown shape")
    sizes = list(given.get("qkv_hidden_sizes") or [columns[1] // 3] * 3)
    products = graph.op("MatMul", [data, weight])
    if bias:
        products = graph.op("Add", [products, bias])
    ends = np.cumsum([0, *sizes]).tolist()
    parts = [graph.slice(products, 2, ends[i], ends[i + 1]) for i in range(3)]
    query, key, value = (by_heads(graph, part, settings.heads) for part in parts)
    if past:
        pasts = [_without_first(graph, graph.slice(past, 0, i, i + 1)) for i in range(2)]
        key = graph.concat([pasts[0], key], 2)
        value = graph.concat([pasts[1], value], 2)
    output, present = optional(node.output, 2)
    if present:
        graph.concat([graph.unsqueeze(key, 0), graph.unsqueeze(value, 0)], 0, present)
    return _attend(graph, node, settings, (query, key, value), mask, added, output)


def _multi_head(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Attention of queries, keys and values that are separate inputs."""
    query, key, value, bias, mask, added, *pasts = optional(node.input, 8)
    settings = _Settings.of(node)
    shapes = [graph.shape(name) for name in (query, key, value)]
    if None in shapes or len(shapes[0]) != 3:
        return graph.refuse(node, "has its inputs packed in one tensor, which is not supported")
    parts = []
    begin = 0
    for name, shape in zip((query, key, value), shapes, strict=True):
        if len(shape) == HEADS_FIRST:
            parts.append(name)
            continue
        if bias:
            offset = graph.fold_slice(bias, 0, begin, begin + shape[2])
            begin += shape[2]
            name = graph.op("Add", [name, offset])
        parts.append(by_heads(graph, name, settings.heads))
    for index, past in enumerate(pasts, start=1):
        if past:
            parts[index] = graph.concat([past, parts[index]], 2)
    output, *presents = optional(node.output, 3)
    for part, present in zip(parts[1:], presents, strict=True):
        if present:
            graph.op("Identity", [part], present)
    return _attend(graph, node, settings, tuple(parts), mask, added, output)


def by_heads(graph: GraphBuilder, data: str, heads: int) -> str:
    """From (batch, length, heads x size) to (batch, heads, length, size)."""
    batch, length, width = graph.shape(data)
    apart = graph.reshape(data, [batch, length, heads, width // heads])
    return graph.transpose(apart, [0, 2, 1, 3])


def _without_first(graph: GraphBuilder, data: str) -> str:
    return graph.reshape(data, graph.shape(data)[1:])


def _attend(
    graph: GraphBuilder,
    node: NodeProto,
    settings: _Settings,
    parts: tuple[str, ...],
    mask: str,
    added: str,
    output: str,
) -> bool:
    query, key, value = parts
    batch, heads, length, size = graph.shape(query)
    total = graph.shape(key)[2]
    factor = settings.scale or 1 / math.sqrt(size)
    turned = graph.transpose(key, [0, 1, 3, 2])
    scores = graph.op("MatMul", [query, turned])
    scores = graph.op("Mul", [scores, graph.constant(factor, graph.dtype(scores))])
    for offset in _offsets(graph, settings, mask, [batch, length, total], graph.dtype(scores)):
        if offset is None:
            return graph.refuse(node, "has a mask of a form that is not supported")
        scores = graph.op("Add", [scores, offset])
    if added:
        scores = graph.op("Add", [scores, added])
    weights = graph.op("Softmax", [scores], axis=3)
    result = graph.transpose(graph.op("MatMul", [weights, value]), [0, 2, 1, 3])
    graph.reshape(result, [batch, length, heads * graph.shape(value)[3]], output)
    return True


def _offsets(
    graph: GraphBuilder, settings: _Settings, mask: str, sizes: list[int], dtype: np.dtype
) -> list[str | None]:
    """Biases that mask scores; None in the list stands for a mask of an unknown form."""
    batch, length, total = sizes
    offsets: list[str | None] = []
    if settings.causal:
        seen = np.tril(np.ones((length, total), bool), total - length)
        offsets.append(graph.constant(np.where(seen, 0, settings.filtered), dtype))
    if not mask:
        return offsets
    shape = graph.shape(mask)
    if shape == [batch]:
        places = graph.constant(np.arange(total)[None], np.int32)
        ends = graph.reshape(graph.cast(mask, TensorProto.INT32), [batch, 1])
        seen, shape = graph.op("Less", [places, ends]), [batch, total]
    else:
        seen = graph.cast(mask, TensorProto.BOOL)
    full = {(batch, total): [batch, 1, 1, total], (batch, length, total): [batch, 1, length, total]}
    if shape is None or tuple(shape) not in full:
        return [None]
    none, away = (graph.constant(each, dtype) for each in (0.0, settings.filtered))
    offset = graph.op("Where", [seen, none, away])
    return [*offsets, graph.reshape(offset, full[tuple(shape)])]


def _rotary(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Rotate pairs of a head's elements by angles that depend on their position."""
    data, places, cosines, sines = node.input
    given, shape = attributes_of(node), graph.shape(data)
    half = (graph.shape(cosines) or [0, 0])[1]
    if shape is None or given.get("is_packed_batching") or given.get("scale", 1.0) != 1.0:
        return graph.refuse(node, "is packed or scaled, which is not supported")
    if len(shape) == HEADS_FIRST:
        heads_last = graph.transpose(data, [0, 2, 1, 3])
        batch, heads, length, size = shape
    else:
        batch, length, width = shape
        heads = given.get("num_heads") or width // (2 * half)
        size = width // heads
        heads_last = graph.reshape(data, [batch, length, heads, size])
    factors = []
    for cache in (cosines, sines):
        if graph.shape(places) == [1]:
            first = graph.constant(np.arange(length)[None], np.int64)
            taken = graph.op("Gather", [cache, graph.op("Add", [first, places])], axis=0)
            factors.append(graph.reshape(taken, [1, length, 1, half]))
        else:
            taken = graph.op("Gather", [cache, places], axis=0)
            factors.append(graph.reshape(taken, [batch, length, 1, half]))
    result = rotated(graph, heads_last, factors, 2 * half, bool(given.get("interleaved")))
    if len(shape) == HEADS_FIRST:
        graph.transpose(result, [0, 2, 1, 3], node.output[0])
    else:
        graph.reshape(result, shape, node.output[0])
    return True


def rotated(
    graph: GraphBuilder, data: str, angles: Sequence[str], rotary: int, interleaved: bool = False
) -> str:
    """Rotate pairs of elements along the last axis by angles.

    Parameters
    ----------
    graph : GraphBuilder
    data : str
        Of rank 4, (..., size).
    angles : sequence of str
        Cosines and sines, broadcast to (..., rotary / 2).
    rotary : int
        Elements that are rotated, the first of the axis; the others stay.
    interleaved : bool
        Whether a pair is two neighbours; otherwise its elements are ``rotary / 2`` apart.

    Returns
    -------
    result : str
        Of the same shape.
    """
    *outer, size = graph.shape(data)
    half = rotary // 2
    rotating = graph.slice(data, 3, 0, rotary) if rotary < size else data
    if interleaved:
        pairs = graph.reshape(rotating, [*outer, half, 2])
        parts = [graph.reshape(graph.slice(pairs, 4, i, i + 1), [*outer, half]) for i in range(2)]
    else:
        parts = [graph.slice(rotating, 3, i * half, (i + 1) * half) for i in range(2)]
    (first, second), (cosine, sine) = parts, angles
    real = graph.op("Sub", [graph.op("Mul", [first, cosine]), graph.op("Mul", [second, sine])])
    imaginary = graph.op("Add", [graph.op("Mul", [first, sine]), graph.op("Mul", [second, cosine])])
    if interleaved:
        joined = graph.concat([graph.unsqueeze(each, 4) for each in (real, imaginary)], 4)
        result = graph.reshape(joined, [*outer, rotary])
    else:
        result = graph.concat([real, imaginary], 3)
    if rotary < size:
        result = graph.concat([result, graph.slice(data, 3, rotary, size)], 3)
    return result


HANDLERS: dict[tuple[str, str], Handler] = {
    (MICROSOFT, "Attention"): _attention,
    (MICROSOFT, "MultiHeadAttention"): _multi_head,
    (MICROSOFT, "RotaryEmbedding"): _rotary,
}

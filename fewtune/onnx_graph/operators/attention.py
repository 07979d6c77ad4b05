"""Attention as onnxruntime's transformer optimiser and its generator fuse it (com.microsoft)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from onnx import NodeProto, TensorProto, helper

from fewtune.onnx_graph.graph import attributes_of, optional
from fewtune.onnx_graph.operators.builder import MICROSOFT, GraphBuilder, Handler, Scope

_HEADS_FIRST = 4
_MASKED = -10000.0
_OTHER_FORMS = ("local_window_size", "rotary_interleaved", "smooth_softmax", "softcap")


def _attention(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Self-attention: one product gives queries, keys and values."""
    data, weight, bias, mask, past, added = optional(node.input, 6)
    given = attributes_of(node)
    shape, columns = graph.shape(data), graph.shape(weight)
    if shape is None or columns is None or given.get("do_rotary"):
        return graph.refuse(node, "rotates its inputs, or reads a tensor of unknown shape")
    sizes = list(given.get("qkv_hidden_sizes") or [columns[1] // 3] * 3)
    products = graph.op("MatMul", [data, weight])
    if bias:
        products = graph.op("Add", [products, bias])
    ends = np.cumsum([0, *sizes]).tolist()
    parts = [graph.slice(products, 2, ends[i], ends[i + 1]) for i in range(3)]
    query, key, value = (_by_heads(graph, part, given["num_heads"]) for part in parts)
    if past:
        pasts = [graph.slice(past, 0, i, i + 1) for i in range(2)]
        pasts = [graph.reshape(each, graph.shape(each)[1:]) for each in pasts]
        key = graph.concat([pasts[0], key], 2)
        value = graph.concat([pasts[1], value], 2)
    present = optional(node.output, 2)[1]
    if present:
        graph.concat([graph.unsqueeze(key, 0), graph.unsqueeze(value, 0)], 0, present)
    return _attend(graph, node, (query, key, value), mask, added)


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
            offset = graph.fold_slice(bias, 0, begin, begin + shape[2])
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

    def masked(scores: str) -> str:
        for offset in [*offsets, *([added] if added else [])]:
            scores = graph.op("Add", [scores, offset])
        return scores

    mixed = _mixed(graph, parts, attributes_of(node).get("scale"), masked)
    mixed = graph.transpose(mixed, [0, 2, 1, 3])
    _, _, heads, size = graph.shape(mixed)
    graph.reshape(mixed, [batch, length, heads * size], node.output[0])
    return True


def _mixed(
    graph: GraphBuilder,
    parts: tuple[str, ...],
    scale: float | None,
    masked: Callable[[str], str],
) -> str:
    """Values weighed by the softmax of masked scores, by heads."""
    query, key, value = parts
    scores = graph.op("MatMul", [query, graph.transpose(key, [0, 1, 3, 2])])
    factor = scale or 1 / math.sqrt(graph.shape(query)[3])
    scores = graph.op("Mul", [scores, graph.constant(factor, graph.dtype(query))])
    return graph.op("MatMul", [graph.op("Softmax", [masked(scores)], axis=3), value])


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
    if shape == [batch]:
        places = graph.constant(np.arange(total)[None], np.int32)
        ends = graph.reshape(graph.cast(mask, TensorProto.INT32), [batch, 1])
        seen, shape = graph.op("Less", [places, ends]), [batch, total]
    else:
        seen = graph.cast(mask, TensorProto.BOOL)
    full = {(batch, total): [batch, 1, 1, total], (batch, length, total): [batch, 1, length, total]}
    if shape is None or tuple(shape) not in full:
        return None
    away = given.get("mask_filter_value", _MASKED)
    none, away = (graph.constant(each, dtype) for each in (0.0, away))
    offset = graph.op("Where", [seen, none, away])
    return [*offsets, graph.reshape(offset, full[tuple(shape)])]


def _grouped(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    names = optional(node.input, 11)
    query, key, value, past_key, past_value, lengths, total, cosines, sines, *others = names
    given, shape = attributes_of(node), graph.shape(query)
    end = graph.value(total) if total else None
    if shape is None or end is None or not key:
        return graph.refuse(
            node, "has a total length that is no constant, or packed or unknown inputs"
        )
    if any(others) or any(given.get(name, 0) not in (0, -1, 0.0) for name in _OTHER_FORMS):
        return graph.refuse(node, f"has positions, a bias, or one of {', '.join(_OTHER_FORMS)}")
    heads, shared = int(given["num_heads"]), int(given["kv_num_heads"])
    batch, steps, width = shape
    size = width // heads
    # Number of keys in the cache, before the new ones.
    first = graph.constant(np.zeros(batch, np.int64))
    if int(end.reshape(())) != steps:
        wide = graph.reshape(graph.cast(lengths, TensorProto.INT64), [batch])
        first = graph.op("Sub", [wide, graph.constant(steps - 1, np.int64)])
    places = graph.op(
        "Add",
        [graph.reshape(first, [batch, 1]), graph.constant(np.arange(steps)[None], np.int64)],
    )
    counts = zip((query, key, value), (heads, shared, shared), strict=True)
    parts = [_by_heads(graph, part, count) for part, count in counts]
    if given.get("do_rotary"):
        if graph.shape(cosines)[1] * 2 != size:
            return graph.refuse(node, "rotates only a part of each head")
        angles = [
            graph.unsqueeze(graph.op("Gather", [table, places], axis=0), 1)
            for table in (cosines, sines)
        ]
        parts[:2] = [_rotated(graph, part, angles, size) for part in parts[:2]]
    outputs = optional(node.output, 3)
    caches = [
        _cached(graph, past, part, first, int(end.reshape(())), output)
        for past, part, output in zip((past_key, past_value), parts[1:], outputs[1:], strict=True)
    ]
    length, group = graph.shape(caches[0])[2], heads // shared
    seen = graph.op(
        "LessOrEqual",
        [
            graph.constant(np.arange(length).reshape(1, 1, 1, 1, length), np.int64),
            graph.reshape(places, [batch, 1, 1, steps, 1]),
        ],
    )
    lowest = graph.constant(np.finfo(graph.dtype(query)).min, graph.dtype(query))

    def masked(scores: str) -> str:
        apart = graph.reshape(scores, [batch, shared, group, steps, length])
        hidden = graph.op("Where", [seen, apart, lowest])
        return graph.reshape(hidden, [batch, shared, group * steps, length])

    rows = graph.reshape(parts[0], [batch, shared, group * steps, size])
    mixed = _mixed(graph, (rows, *caches), given.get("scale"), masked)
    mixed = graph.transpose(graph.reshape(mixed, [batch, heads, steps, size]), [0, 2, 1, 3])
    graph.reshape(mixed, [batch, steps, width], outputs[0])
    return True


def _cached(graph: GraphBuilder, past: str, new: str, first: str, end: int, output: str) -> str:
    """The cache of keys or values, with the new ones written behind the earlier ones."""
    before = graph.shape(past) if past else None
    name = output or graph.fresh("cache")
    if before is None or not before[2]:
        return graph.op("Identity", [new], name)
    batch, heads, length, size = before
    if end > length:
        room = graph.constant(np.zeros((batch, heads, end - length, size), graph.dtype(new)))
        past = graph.concat([past, room], 2)
    graph.add(helper.make_node("TensorScatter", [past, new, first], [name], name), {})
    return name


def _rotary(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Rotate pairs of a head's elements by angles that depend on their position."""
    data, places, cosines, sines = node.input
    given, shape = attributes_of(node), graph.shape(data)
    half = (graph.shape(cosines) or [0, 0])[1]
    if shape is None or given.get("is_packed_batching") or given.get("scale", 1.0) != 1.0:
        return graph.refuse(node, "is packed or scaled, which is not supported")
    if len(shape) == _HEADS_FIRST:
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
    result = _rotated(graph, heads_last, factors, 2 * half, bool(given.get("interleaved")))
    if len(shape) == _HEADS_FIRST:
        graph.transpose(result, [0, 2, 1, 3], node.output[0])
    else:
        graph.reshape(result, shape, node.output[0])
    return True


def _rotated(
    graph: GraphBuilder, data: str, angles: Sequence[str], rotary: int, interleaved: bool = False
) -> str:
    """Rotate pairs of elements along the last axis of a value of rank 4 by angles.

    ``angles`` are cosines and sines, broadcast to (..., rotary / 2). The first ``rotary`` elements
    are rotated. A pair is two neighbours if interleaved; else ``rotary / 2`` lie between them.
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
    (MICROSOFT, "GroupQueryAttention"): _grouped,
    (MICROSOFT, "MultiHeadAttention"): _multi_head,
    (MICROSOFT, "RotaryEmbedding"): _rotary,
}

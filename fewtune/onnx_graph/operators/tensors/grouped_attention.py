"""Grouped-query attention with a cache of keys and values (com.microsoft)."""

from __future__ import annotations

import math

import numpy as np
from onnx import NodeProto, TensorProto, helper

from fewtune.onnx_graph.graph import attributes_of, optional
from fewtune.onnx_graph.operators.attention import rotated
from fewtune.onnx_graph.operators.builder import MICROSOFT, GraphBuilder, Handler, Scope

_OTHER_FORMS = ("local_window_size", "rotary_interleaved", "smooth_softmax", "softcap")


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
    parts = [
        graph.transpose(graph.reshape(part, [batch, steps, count, size]), [0, 2, 1, 3])
        for part, count in ((query, heads), (key, shared), (value, shared))
    ]
    if given.get("do_rotary"):
        if graph.shape(cosines)[1] * 2 != size:
            return graph.refuse(node, "rotates only a part of each head")
        angles = [
            graph.unsqueeze(graph.op("Gather", [table, places], axis=0), 1)
            for table in (cosines, sines)
        ]
        parts[:2] = [rotated(graph, part, angles, size) for part in parts[:2]]
    outputs = optional(node.output, 3)
    caches = [
        _cached(graph, past, part, first, int(end.reshape(())), output, scope)
        for past, part, output in zip((past_key, past_value), parts[1:], outputs[1:], strict=True)
    ]
    length, group = graph.shape(caches[0])[2], heads // shared
    rows = graph.reshape(parts[0], [batch, shared, group * steps, size])
    scores = graph.op("MatMul", [rows, graph.transpose(caches[0], [0, 1, 3, 2])])
    scale = given.get("scale") or 1 / math.sqrt(size)
    scores = graph.op("Mul", [scores, graph.constant(scale, graph.dtype(query))])
    scores = graph.reshape(scores, [batch, shared, group, steps, length])
    seen = graph.op(
        "LessOrEqual",
        [
            graph.constant(np.arange(length).reshape(1, 1, 1, 1, length), np.int64),
            graph.reshape(places, [batch, 1, 1, steps, 1]),
        ],
    )
    lowest = graph.constant(np.finfo(graph.dtype(query)).min, graph.dtype(query))
    weights = graph.op("Softmax", [graph.op("Where", [seen, scores, lowest])], axis=4)
    weights = graph.reshape(weights, [batch, shared, group * steps, length])
    mixed = graph.reshape(graph.op("MatMul", [weights, caches[1]]), [batch, heads, steps, size])
    mixed = graph.transpose(mixed, [0, 2, 1, 3])
    graph.reshape(mixed, [batch, steps, width], outputs[0])
    return True


def _cached(
    graph: GraphBuilder, past: str, new: str, first: str, end: int, output: str, scope: Scope
) -> str:
    """The cache of keys or values, with the new ones written behind the earlier ones."""
    before = graph.shape(past) if past else None
    name = output or graph.fresh("cache")
    if before is None or not before[2]:
        return graph.op("Identity", [new], name)
    batch, heads, length, size = before
    if end > length:
        room = graph.constant(np.zeros((batch, heads, end - length, size), graph.dtype(new)))
        past = graph.concat([past, room], 2)
    graph.add(helper.make_node("TensorScatter", [past, new, first], [name], name), scope)
    return name


HANDLERS: dict[tuple[str, str], Handler] = {(MICROSOFT, "GroupQueryAttention"): _grouped}

"""Attention and RotaryEmbedding of ONNX's own operator sets 23 and 24."""

from __future__ import annotations

import math

import numpy as np
from onnx import NodeProto, TensorProto

from fewtune.onnx_graph.graph import attributes_of, optional
from fewtune.onnx_graph.operators.attention import HEADS_FIRST, by_heads, rotated
from fewtune.onnx_graph.operators.builder import GraphBuilder, Handler, Scope


def _attention(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    names, given = optional(node.input, 7), attributes_of(node)
    query, key, value, mask, past_key, past_value, lengths = names
    if any(graph.shape(name) is None for name in names if name):
        return False
    if given.get("left_window_size", -1) >= 0 or given.get("right_window_size", -1) >= 0:
        return graph.refuse(node, "has a sliding window, which is not supported")
    is_flat = len(graph.shape(query)) < HEADS_FIRST
    if is_flat:
        query = by_heads(graph, query, given["q_num_heads"])
        key, value = (by_heads(graph, each, given["kv_num_heads"]) for each in (key, value))
    output, present_key, present_value, products = optional(node.output, 4)
    past = graph.shape(past_key)[2] if past_key else 0
    key = _with_past(graph, past_key, key, present_key)
    value = _with_past(graph, past_value, value, present_value)
    _, heads, rows, size = graph.shape(query)
    key, value = _repeated(graph, key, heads), _repeated(graph, value, heads)
    columns, dtype = graph.shape(key)[2], graph.dtype(query)
    scale = given.get("scale") or 1 / math.sqrt(size)
    scaled = graph.op("Mul", [query, graph.constant(scale, dtype)])
    stages = [graph.op("MatMul", [scaled, graph.transpose(key, [0, 1, 3, 2])])]
    stages.append(_capped(graph, stages[0], given.get("softcap", 0.0)))
    is_causal = bool(given.get("is_causal"))
    biases = _biases(graph, mask, lengths, (rows, columns), past, is_causal, dtype)
    total = None
    for bias in biases:
        total = bias if total is None else graph.op("Add", [total, bias])
    stages.append(stages[1] if total is None else graph.op("Add", [stages[1], total]))
    wide = graph.cast(stages[2], given.get("softmax_precision") or graph.element_type(query))
    likely = graph.cast(graph.op("Softmax", [wide], axis=-1), graph.element_type(query))
    if total is not None:
        # Softmax of a row that is masked as a whole is NaN; it counts as zero. The largest of a
        # row does not tell: TVM's maximum starts at the lowest finite number, above -inf.
        lowest = graph.constant(np.finfo(dtype).min, dtype)
        masked = graph.cast(graph.op("Less", [total, lowest]), TensorProto.FLOAT)
        fewest = graph.reduce("ReduceMin", masked, [-1])
        is_masked = graph.op("Greater", [fewest, graph.constant(0.5, np.float32)])
        likely = graph.op("Where", [is_masked, graph.constant(0, dtype), likely])
    stages.append(likely)
    if products:
        graph.op("Identity", [stages[given.get("qk_matmul_output_mode", 0)]], products)
    attended = graph.op("MatMul", [likely, value], None if is_flat else output)
    if is_flat:
        batch, _, _, width = graph.shape(attended)
        swapped = graph.transpose(attended, [0, 2, 1, 3])
        graph.reshape(swapped, [batch, rows, heads * width], output)
    return True


def _with_past(graph: GraphBuilder, past: str, data: str, present: str) -> str:
    if past:
        return graph.concat([past, data], 2, present or None)
    return graph.op("Identity", [data], present) if present else data


def _repeated(graph: GraphBuilder, data: str, heads: int) -> str:
    """Repeat each head for the queries that share it."""
    batch, own, rows, width = graph.shape(data)
    if own == heads:
        return data
    shape = graph.constant([batch, own, heads // own, rows, width], np.int64)
    spread = graph.op("Expand", [graph.unsqueeze(data, 2), shape])
    return graph.reshape(spread, [batch, heads, rows, width])


def _capped(graph: GraphBuilder, scores: str, cap: float) -> str:
    if not cap:
        return scores
    number = graph.constant(cap, graph.dtype(scores))
    return graph.op("Mul", [graph.op("Tanh", [graph.op("Div", [scores, number])]), number])


def _biases(
    graph: GraphBuilder,
    mask: str,
    lengths: str,
    extents: tuple[int, int],
    past: int,
    causal: bool,
    dtype: np.dtype,
) -> list[str]:
    """Biases of the scores: 0 where a key counts, -inf where it is masked."""
    (rows, columns), found = extents, []

    def hidden(allowed: str) -> str:
        ends = [graph.constant(each, dtype) for each in (0, -np.inf)]
        return graph.op("Where", [allowed, *ends])

    if mask:
        shape = graph.shape(mask)
        bias = hidden(mask) if graph.dtype(mask) == np.bool_ else mask
        if shape[-1] < columns:
            rest = np.full((*shape[:-1], columns - shape[-1]), -np.inf, graph.dtype(bias))
            bias = graph.concat([bias, graph.constant(rest)], len(shape) - 1)
        found.append(bias)
    reach = np.arange(columns) - np.arange(rows)[:, None]
    if lengths:
        batch = graph.shape(lengths)[0]
        counts = graph.reshape(lengths, [batch, 1, 1, 1])
        places = graph.constant(np.arange(columns).reshape(1, 1, 1, -1), np.int64)
        found.append(hidden(graph.op("Less", [places, counts])))
        if causal:
            before = graph.op("Sub", [counts, graph.constant(rows, np.int64)])
            found.append(hidden(graph.op("LessOrEqual", [graph.constant(reach, np.int64), before])))
    elif causal:
        found.append(graph.constant(np.where(reach <= past, 0, -np.inf), dtype))
    return found


def _rotary(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    data, cosines, sines, places = optional(node.input, 4)
    given, shape = attributes_of(node), graph.shape(data)
    if shape is None or graph.shape(cosines) is None:
        return False
    if len(shape) == HEADS_FIRST:
        width = shape[3]
        by_head = graph.transpose(data, [0, 2, 1, 3])
    else:
        heads = given["num_heads"]
        width = shape[2] // heads
        by_head = graph.reshape(data, [*shape[:2], heads, width])
    rotary = given.get("rotary_embedding_dim") or width
    caches = [
        graph.unsqueeze(graph.op("Gather", [cache, places], axis=0) if places else cache, 2)
        for cache in (cosines, sines)
    ]
    result = rotated(graph, by_head, caches, rotary, bool(given.get("interleaved")))
    if len(shape) == HEADS_FIRST:
        graph.transpose(result, [0, 2, 1, 3], node.output[0])
    else:
        graph.reshape(result, shape, node.output[0])
    return True


HANDLERS: dict[tuple[str, str], Handler] = {
    ("", "Attention"): _attention,
    ("", "RotaryEmbedding"): _rotary,
}

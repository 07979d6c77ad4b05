"""TfIdfVectorizer of integers: counts of n-grams in each row."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto

from fewtune.onnx_graph.graph import attributes_of
from fewtune.onnx_graph.operators.builder import GraphBuilder, Handler, Scope

# Comparisons of an element with one of an n-gram, for each row.
_MOST_COMPARED = 10_000_000


def _vectorizer(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    given, shape = attributes_of(node), graph.shape(node.input[0])
    if shape is None or len(shape) not in (1, 2) or not given.get("pool_int64s"):
        return graph.refuse(node, "counts texts, or reads rows whose length is not known")
    columns = np.array(given["ngram_indexes"], np.int64)
    if sorted(columns.tolist()) != list(range(len(columns))):
        return graph.refuse(node, "counts several n-grams in one column, or none in another")
    pools = _pools(given)
    length, width = shape[-1], len(columns)
    data = graph.reshape(node.input[0], [int(np.prod(shape[:-1], dtype=int)), length])
    counts, numbered = [], 0
    for size, pool in enumerate(pools, 1):
        numbers = range(numbered, numbered := numbered + len(pool))
        if not len(pool) or not given["min_gram_length"] <= size <= given["max_gram_length"]:
            continue
        windows = _windows(length, size, int(given["max_skip_count"]))
        if len(windows) * size * len(pool) > _MOST_COMPARED:
            return graph.refuse(node, f"compares {len(windows)} places with {len(pool)} n-grams")
        if len(windows):
            counts.append(_counted(graph, data, windows, pool, columns[list(numbers)], width))
    if counts:
        total = counts[0]
        for each in counts[1:]:
            total = graph.op("Add", [total, each])
    else:
        total = graph.constant(np.zeros((graph.shape(data)[0], width), np.float32))
    mode, weights = given["mode"].decode(), np.ones(width, np.float32)
    # Weights are in the order of the n-grams, not of the columns.
    weights[columns] = given.get("weights") or 1
    if mode == "IDF":
        found = graph.op("Greater", [total, graph.constant(np.float32(0))])
        total = graph.cast(found, TensorProto.FLOAT)
    if mode != "TF":
        total = graph.op("Mul", [total, graph.constant(weights)])
    graph.reshape(total, [*shape[:-1], width], node.output[0])
    return True


def _pools(given: dict[str, Any]) -> list[np.ndarray]:
    """The n-grams to find, (n-grams, n), for each n from 1 on."""
    pool = np.array(given["pool_int64s"], np.int64)
    ends = [*given["ngram_counts"], len(pool)]
    return [pool[ends[size - 1] : ends[size]].reshape(-1, size) for size in range(1, len(ends))]


def _windows(length: int, size: int, most_skipped: int) -> np.ndarray:
    """Positions in a row that may make up an n-gram, (windows, size)."""
    found = [
        [begin + distance * each for each in range(size)]
        for distance in range(1, 2 + (most_skipped if size > 1 else 0))
        for begin in range(length - distance * (size - 1))
    ]
    return np.array(found, np.int64).reshape(-1, size)


def _counted(
    graph: GraphBuilder,
    data: str,
    windows: np.ndarray,
    pool: np.ndarray,
    columns: np.ndarray,
    width: int,
) -> str:
    """Count the n-grams of one size, each in its column, (rows, width)."""
    rows, (count, size) = graph.shape(data)[0], windows.shape
    taken = graph.op("Gather", [data, graph.constant(windows.reshape(-1))], axis=1)
    apart = graph.reshape(taken, [rows, count, 1, size])
    same = graph.op("Equal", [apart, graph.constant(pool, graph.dtype(data))])
    whole = graph.reduce("ReduceMin", graph.cast(same, TensorProto.FLOAT), [3], 0)
    counts = graph.reduce("ReduceSum", whole, [1], 0)
    spread = np.zeros((len(pool), width), np.float32)
    spread[np.arange(len(pool)), columns] = 1
    return graph.op("MatMul", [counts, graph.constant(spread)])


HANDLERS: dict[tuple[str, str], Handler] = {("", "TfIdfVectorizer"): _vectorizer}

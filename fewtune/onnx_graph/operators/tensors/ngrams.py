"""How often runs of numbers occur in a row: TfIdfVectorizer of whole numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto

from fewtune.onnx_graph.operators.builder import GraphBuilder, Handler, Scope
from fewtune.onnx_graph.operators.fused import attributes_of

# Comparisons of a place with a number, of one row.
_MOST_COMPARED = 10_000_000


def _vectorizer(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:  # noqa: ARG001
    given, shape = attributes_of(node), graph.shape(node.input[0])
    if shape is None or len(shape) not in (1, 2) or not given.get("pool_int64s"):
        return graph.refuse(node, "counts texts, or reads rows whose length is not known")
    columns = np.array(given["ngram_indexes"], np.int64)
    if sorted(columns.tolist()) != list(range(len(columns))):
        return graph.refuse(node, "counts several runs in one column, or none in another")
    pools = _pools(given)
    length, width = shape[-1], len(columns)
    data = graph.reshape(node.input[0], [int(np.prod(shape[:-1], dtype=int)), length])
    counts, numbered = [], 0
    for size, pool in enumerate(pools, 1):
        numbers = range(numbered, numbered := numbered + len(pool))
        if not len(pool) or not given["min_gram_length"] <= size <= given["max_gram_length"]:
            continue
        places = _places(length, size, int(given["max_skip_count"]))
        if len(places) * size * len(pool) > _MOST_COMPARED:
            return graph.refuse(node, f"compares {len(places)} places with {len(pool)} runs")
        if len(places):
            counts.append(_counted(graph, data, places, pool, columns[list(numbers)], width))
    if counts:
        total = counts[0]
        for each in counts[1:]:
            total = graph.op("Add", [total, each])
    else:
        total = graph.constant(np.zeros((graph.shape(data)[0], width), np.float32))
    mode, weights = given["mode"].decode(), np.ones(width, np.float32)
    # A weight is a run's, whatever the column.
    weights[columns] = given.get("weights") or 1
    if mode == "IDF":
        found = graph.op("Greater", [total, graph.constant(np.float32(0))])
        total = graph.cast(found, TensorProto.FLOAT)
    if mode != "TF":
        total = graph.op("Mul", [total, graph.constant(weights)])
    graph.reshape(total, [*shape[:-1], width], node.output[0])
    return True


def _pools(given: dict[str, Any]) -> list[np.ndarray]:
    """Of each length, from one, the runs to find, (runs, length)."""
    pool = np.array(given["pool_int64s"], np.int64)
    ends = [*given["ngram_counts"], len(pool)]
    return [pool[ends[size - 1] : ends[size]].reshape(-1, size) for size in range(1, len(ends))]


def _places(length: int, size: int, most_skipped: int) -> np.ndarray:
    """The places in a row that make up a run, of all runs, (runs, size)."""
    found = [
        [begin + distance * each for each in range(size)]
        for distance in range(1, 2 + (most_skipped if size > 1 else 0))
        for begin in range(length - distance * (size - 1))
    ]
    return np.array(found, np.int64).reshape(-1, size)


def _counted(
    graph: GraphBuilder,
    data: str,
    places: np.ndarray,
    pool: np.ndarray,
    columns: np.ndarray,
    width: int,
) -> str:
    """How often each run of one length occurs, (rows, width), in its column."""
    rows, (runs, size) = graph.shape(data)[0], places.shape
    taken = graph.op("Gather", [data, graph.constant(places.reshape(-1))], axis=1)
    apart = graph.reshape(taken, [rows, runs, 1, size])
    same = graph.op("Equal", [apart, graph.constant(pool, graph.dtype(data))])
    whole = graph.reduce("ReduceMin", graph.cast(same, TensorProto.FLOAT), [3], 0)
    counts = graph.reduce("ReduceSum", whole, [1], 0)
    spread = np.zeros((len(pool), width), np.float32)
    spread[np.arange(len(pool)), columns] = 1
    return graph.op("MatMul", [counts, graph.constant(spread)])


HANDLERS: dict[tuple[str, str], Handler] = {("", "TfIdfVectorizer"): _vectorizer}

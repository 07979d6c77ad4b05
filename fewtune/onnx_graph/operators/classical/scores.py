"""What classifiers make of raw scores: the label of the best class, and probabilities."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from fewtune.onnx_graph.operators.builder import GraphBuilder

_OPERATORS = {"LOGISTIC": "Sigmoid", "SOFTMAX": "Softmax"}
TRANSFORMS = frozenset({"NONE", "SOFTMAX_ZERO", *_OPERATORS})
# Nearer to zero a score is none (onnxruntime).
_NONE_BELOW = 1e-7


def transformed(graph: GraphBuilder, scores: str, transform: str, output: str) -> str:
    """Raw scores, (rows, classes), as `transform` has them; one of `TRANSFORMS`."""
    if transform == "NONE":
        return graph.op("Identity", [scores], output)
    if transform == "SOFTMAX_ZERO":
        return _softmax_of_others(graph, scores, output)
    axis = {"axis": 1} if transform == "SOFTMAX" else {}
    return graph.op(_OPERATORS[transform], [scores], output, **axis)


def _softmax_of_others(graph: GraphBuilder, scores: str, output: str) -> str:
    """Softmax of the scores that are not zero; those that are stay so."""
    most, dtype = graph.reduce("ReduceMax", scores, [1]), graph.dtype(scores)
    limit = graph.constant(_NONE_BELOW, dtype)
    is_none = graph.op("LessOrEqual", [graph.op("Abs", [scores]), limit])
    raised = graph.op("Exp", [graph.op("Sub", [scores, most])])
    shares = graph.op("Where", [is_none, graph.constant(0, dtype), raised])
    return graph.op("Div", [shares, graph.reduce("ReduceSum", shares, [1])], output)


def best_label(graph: GraphBuilder, scores: str, labels: Sequence[int], output: str) -> None:
    """Label of the class of the highest score, the first of several; (rows)."""
    if not output:
        return
    best = graph.op("ArgMax", [scores], axis=1, keepdims=0)
    graph.op("Gather", [graph.constant(labels, np.int64), best], output, axis=0)


def label_above(
    graph: GraphBuilder, score: str, bound: float, labels: Sequence[int], output: str
) -> None:
    """The second label where a score, (rows, 1), is above the bound, else the first; (rows)."""
    if not output:
        return
    above = graph.op("Greater", [score, graph.constant(bound, graph.dtype(score))])
    place = graph.reshape(graph.cast(above, TensorProto.INT64), [-1])
    graph.op("Gather", [graph.constant(labels, np.int64), place], output, axis=0)


def both_sides(
    graph: GraphBuilder, score: str, transform: str, is_share: bool, output: str
) -> None:
    """Scores of both classes from the second's, (rows, 1): its share of one, or its margin."""
    if is_share:
        sides = [graph.op("Sub", [graph.constant(1, graph.dtype(score)), score]), score]
        graph.op("Concat", sides, output, axis=1)
        return
    sides = [graph.op("Neg", [score]), score]
    transformed(graph, graph.op("Concat", sides, axis=1), transform, output)

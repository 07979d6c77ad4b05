"""From raw scores of classifiers to labels and probabilities."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from fewtune.onnx_graph.operators.builder import GraphBuilder

_OPERATORS = {"LOGISTIC": "Sigmoid", "SOFTMAX": "Softmax"}
TRANSFORMS = frozenset({"NONE", "SOFTMAX_ZERO", *_OPERATORS})
# onnxruntime takes scores up to this magnitude for zero.
_ZERO_UP_TO = 1e-7


def transformed(graph: GraphBuilder, scores: str, transform: str, output: str) -> str:
    """Apply a transform, one of `TRANSFORMS`, to raw scores, (rows, classes)."""
    if transform == "NONE":
        return graph.op("Identity", [scores], output)
    if transform == "SOFTMAX_ZERO":
        return _softmax_of_nonzero(graph, scores, output)
    axis = {"axis": 1} if transform == "SOFTMAX" else {}
    return graph.op(_OPERATORS[transform], [scores], output, **axis)


def _softmax_of_nonzero(graph: GraphBuilder, scores: str, output: str) -> str:
    """Softmax of the scores that are not zero; zeros stay zero."""
    most, dtype = graph.reduce("ReduceMax", scores, [1]), graph.dtype(scores)
    limit = graph.constant(_ZERO_UP_TO, dtype)
    is_zero = graph.op("LessOrEqual", [graph.op("Abs", [scores]), limit])
    raised = graph.op("Exp", [graph.op("Sub", [scores, most])])
    shares = graph.op("Where", [is_zero, graph.constant(0, dtype), raised])
    return graph.op("Div", [shares, graph.reduce("ReduceSum", shares, [1])], output)


def best_label(graph: GraphBuilder, scores: str, labels: Sequence[int], output: str) -> None:
    """Write the label of the highest score, the first of equal ones, (rows,)."""
    if not output:
        return
    best = graph.op("ArgMax", [scores], axis=1, keepdims=0)
    graph.op("Gather", [graph.constant(labels, np.int64), best], output, axis=0)


def label_above(
    graph: GraphBuilder, score: str, bound: float, labels: Sequence[int], output: str
) -> None:
    """Write the second label if a score, (rows, 1), is above a bound, else the first, (rows,)."""
    if not output:
        return
    above = graph.op("Greater", [score, graph.constant(bound, graph.dtype(score))])
    place = graph.reshape(graph.cast(above, TensorProto.INT64), [-1])
    graph.op("Gather", [graph.constant(labels, np.int64), place], output, axis=0)


def both_sides(
    graph: GraphBuilder, score: str, transform: str, is_share: bool, output: str
) -> None:
    """Write scores of two classes, (rows, 2), from the second's, (rows, 1).

    The first class' score is one less the second's if that is a share, else its negative.
    """
    if is_share:
        sides = [graph.op("Sub", [graph.constant(1, graph.dtype(score)), score]), score]
        graph.op("Concat", sides, output, axis=1)
        return
    sides = [graph.op("Neg", [score]), score]
    transformed(graph, graph.op("Concat", sides, axis=1), transform, output)

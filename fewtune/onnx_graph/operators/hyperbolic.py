"""Sinh, Cosh and Atanh that are accurate near zero and near overflow.

TVM's ``atanh`` is the logarithm of a number that is rounded next to one: near zero no digit of the
result is right. The same holds for ``sinh`` as half the difference of two exponentials, which also
overflow earlier than their half.
"""

from __future__ import annotations

import numpy as np
from onnx import NodeProto

from fewtune.onnx_graph.operators.builder import GraphBuilder, Handler, Scope

# Below these magnitudes a series is summed; its terms decrease at least by their square.
_SMALL_SINH, _SMALL_ATANH = 1.0, 0.25


def _sinh(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    data = node.input[0]
    rising, falling = _half_exponentials(graph, data)
    large = graph.op("Sub", [rising, falling])
    _near_zero(graph, node, large, _SMALL_SINH, _sinh_series(graph.dtype(data)))
    return True


def _cosh(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    graph.op("Add", list(_half_exponentials(graph, node.input[0])), node.output[0])
    return True


def _atanh(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    data = node.input[0]
    dtype = graph.dtype(data)
    one = graph.constant(1, dtype)
    ratio = graph.op("Div", [graph.op("Add", [one, data]), graph.op("Sub", [one, data])])
    large = graph.op("Mul", [graph.op("Log", [ratio]), graph.constant(0.5, dtype)])
    _near_zero(graph, node, large, _SMALL_ATANH, _atanh_series(dtype))
    return True


def _half_exponentials(graph: GraphBuilder, data: str) -> tuple[str, str]:
    """Half of exp(x) and of exp(-x), by square roots, which are finite whenever the half is."""
    dtype = graph.dtype(data)
    halves = []
    for sign in (0.5, -0.5):
        root = graph.op("Exp", [graph.op("Mul", [data, graph.constant(sign, dtype)])])
        half = graph.op("Mul", [root, graph.constant(0.5, dtype)])
        halves.append(graph.op("Mul", [half, root]))
    return halves[0], halves[1]


def _near_zero(
    graph: GraphBuilder, node: NodeProto, large: str, limit: float, series: list[float]
) -> None:
    """Write a series in odd powers, lowest first, for small elements, else ``large``."""
    data = node.input[0]
    dtype = graph.dtype(data)
    square = graph.op("Mul", [data, data])
    total = graph.constant(series[-1], dtype)
    for factor in series[-2::-1]:
        product = graph.op("Mul", [total, square])
        total = graph.op("Add", [product, graph.constant(factor, dtype)])
    small = graph.op("Mul", [total, data])
    is_small = graph.op("Less", [graph.op("Abs", [data]), graph.constant(limit, dtype)])
    graph.op("Where", [is_small, small, large], node.output[0])


def _sinh_series(dtype: np.dtype) -> list[float]:
    terms = [1.0]
    while terms[-1] > np.finfo(dtype).eps / 8:
        count = 2 * len(terms)
        terms.append(terms[-1] / (count * (count + 1)))
    return terms


def _atanh_series(dtype: np.dtype) -> list[float]:
    terms = [1.0]
    while terms[-1] * _SMALL_ATANH ** (2 * len(terms) - 2) > np.finfo(dtype).eps / 8:
        terms.append(1 / (2 * len(terms) + 1))
    return terms


HANDLERS: dict[tuple[str, str], Handler] = {
    ("", "Atanh"): _atanh,
    ("", "Cosh"): _cosh,
    ("", "Sinh"): _sinh,
}

"""Hyperbolic functions and their inverses near zero and near overflow.

TVM's ``atanh`` and ``asinh`` take the logarithm of a number that is rounded near one: for arguments
near zero, no digit is right. The same holds for ``sinh`` as half the difference of two
exponentials, and the exponentials overflow before the result does. In ``asinh``, the square of a
large argument overflows, or absorbs the one that is added to it.
"""

from __future__ import annotations

import numpy as np
from onnx import NodeProto

from fewtune.onnx_graph.operators.builder import GraphBuilder, Handler, Scope

# Below these magnitudes a series is summed; its terms decrease at least by their square.
_SMALL_SINH, _SMALL_INVERSE = 1.0, 0.25
# Above these magnitudes, adding one to the square does not change it.
_LARGE = {np.dtype(np.float32): 1e4, np.dtype(np.float64): 1e9}


def _sinh(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    data = node.input[0]
    rising, falling = _half_exponentials(graph, data)
    large = graph.op("Sub", [rising, falling])
    _near_zero(graph, data, large, _SMALL_SINH, _sinh_series(graph.dtype(data)), node.output[0])
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
    _near_zero(graph, data, large, _SMALL_INVERSE, _atanh_series(dtype), node.output[0])
    return True


def _asinh(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    if graph.dtype(node.input[0]) not in _LARGE:
        return False
    _write_asinh(graph, node.input[0], node.output[0])
    return True


def _acosh(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """By ``asinh``: ``sqrt(x² - 1)`` is the hyperbolic sine, and two roots do not overflow."""
    data = node.input[0]
    if graph.dtype(data) not in _LARGE:
        return False
    one = graph.constant(1, graph.dtype(data))
    roots = [graph.op("Sqrt", [graph.op(each, [data, one])]) for each in ("Sub", "Add")]
    _write_asinh(graph, graph.op("Mul", roots), node.output[0])
    return True


def _write_asinh(graph: GraphBuilder, data: str, output: str) -> None:
    dtype = graph.dtype(data)
    size = graph.op("Abs", [data])
    square = graph.op("Mul", [size, size])
    root = graph.op("Sqrt", [graph.op("Add", [square, graph.constant(1, dtype)])])
    is_large = graph.op("Greater", [size, graph.constant(_LARGE[dtype], dtype)])
    total = graph.op("Where", [is_large, size, graph.op("Add", [size, root])])
    doubled = [graph.constant(each, dtype) for each in (np.log(2), 0)]
    large = graph.op("Add", [graph.op("Log", [total]), graph.op("Where", [is_large, *doubled])])
    large = graph.op("Mul", [large, graph.op("Sign", [data])])
    _near_zero(graph, data, large, _SMALL_INVERSE, _asinh_series(dtype), output)


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
    graph: GraphBuilder, data: str, large: str, limit: float, series: list[float], output: str
) -> None:
    """Write a series in odd powers, lowest first, for small elements, else ``large``."""
    dtype = graph.dtype(data)
    square = graph.op("Mul", [data, data])
    total = graph.constant(series[-1], dtype)
    for factor in series[-2::-1]:
        product = graph.op("Mul", [total, square])
        total = graph.op("Add", [product, graph.constant(factor, dtype)])
    small = graph.op("Mul", [total, data])
    is_small = graph.op("Less", [graph.op("Abs", [data]), graph.constant(limit, dtype)])
    graph.op("Where", [is_small, small, large], output)


def _sinh_series(dtype: np.dtype) -> list[float]:
    terms = [1.0]
    while terms[-1] > np.finfo(dtype).eps / 8:
        count = 2 * len(terms)
        terms.append(terms[-1] / (count * (count + 1)))
    return terms


def _atanh_series(dtype: np.dtype) -> list[float]:
    terms = [1.0]
    while terms[-1] * _SMALL_INVERSE ** (2 * len(terms) - 2) > np.finfo(dtype).eps / 8:
        terms.append(1 / (2 * len(terms) + 1))
    return terms


def _asinh_series(dtype: np.dtype) -> list[float]:
    terms = [1.0]
    while abs(terms[-1]) * _SMALL_INVERSE ** (2 * len(terms) - 2) > np.finfo(dtype).eps / 8:
        count = len(terms)
        terms.append(-terms[-1] * (2 * count - 1) ** 2 / (2 * count * (2 * count + 1)))
    return terms


HANDLERS: dict[tuple[str, str], Handler] = {
    ("", "Acosh"): _acosh,
    ("", "Asinh"): _asinh,
    ("", "Atanh"): _atanh,
    ("", "Cosh"): _cosh,
    ("", "Sinh"): _sinh,
}

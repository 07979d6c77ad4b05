"""Fourier transforms as products with constant matrices."""

from __future__ import annotations

import numpy as np
from onnx import NodeProto, TensorProto

from fewtune.onnx_graph.graph import attributes_of
from fewtune.onnx_graph.operators.builder import GraphBuilder, Handler, Scope


def _fourier(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """A discrete Fourier transform as a product with a constant matrix."""
    attributes = attributes_of(node)
    data = node.input[0]
    shape = graph.shape(data)
    axis = attributes.get("axis", -2 if len(node.input) > 2 or graph.opset >= 20 else 1)
    given = [graph.value(name) if name else None for name in [*node.input[1:], "", ""][:2]]
    if len(node.input) > 2 and node.input[2]:
        if given[1] is None:
            return graph.refuse(node, "has an axis that is no constant")
        axis = int(given[1].reshape(()))
    if shape is None or (len(node.input) > 1 and node.input[1] and given[0] is None):
        return graph.refuse(node, "has a shape or length that is no constant")
    axis = int(axis) % len(shape)
    if axis == len(shape) - 1:
        return graph.refuse(node, "transforms along the axis of real and imaginary parts")
    extent = shape[axis]
    inverse, onesided = (bool(attributes.get(name, 0)) for name in ("inverse", "onesided"))
    length = extent if given[0] is None else int(given[0].reshape(()))
    if onesided and inverse and given[0] is None:
        length = 2 * (extent - 1)
    matrix = _fourier_matrix(min(extent, length), length, shape[-1], inverse, onesided)
    # A row is the transformed axis, which moves last but one, with the parts of its numbers.
    order = [each for each in range(len(shape) - 1) if each != axis] + [axis, len(shape) - 1]
    moved = graph.transpose(data, order)
    used = min(extent, length)
    if used < extent:
        moved = graph.slice(moved, len(shape) - 2, 0, used)
    outer = [shape[each] for each in order[:-2]]
    rows = int(np.prod(outer, dtype=np.int64))
    flat = graph.reshape(moved, [rows, used * shape[-1]])
    # In double precision: large terms may cancel.
    wide = graph.cast(flat, TensorProto.DOUBLE)
    product = graph.op("MatMul", [wide, graph.constant(matrix, np.float64)])
    product = graph.cast(product, graph.element_type(data))
    parts = 1 if inverse and onesided else 2
    result = graph.reshape(product, [*outer, matrix.shape[1] // parts, parts])
    graph.transpose(result, [order.index(each) for each in range(len(shape))], node.output[0])
    return True


def _short_time_fourier(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Gathered frames of a signal times a constant matrix."""
    signal, step, window, length = [*node.input, "", ""][:4]
    shape = graph.shape(signal)
    given = [graph.value(name) if name else None for name in (step, length)]
    windowed = graph.shape(window) if window else None
    if shape is None or given[0] is None or (length and given[1] is None):
        return graph.refuse(node, "has a step or length that is no constant: bind it")
    if given[1] is None and windowed is None:
        return graph.refuse(node, "has neither a window of known length nor a frame length")
    used = int(given[1].reshape(())) if given[1] is not None else windowed[0]
    stride, parts = int(given[0].reshape(())), shape[2] if len(shape) > 2 else 1
    places = np.arange(0, shape[1] - used + 1, stride)[:, None] + np.arange(used)[None, :]
    data = graph.reshape(signal, [*shape[:2], parts])
    taken = graph.op("Gather", [data, graph.constant(places, np.int64)], axis=1)
    if window:
        taken = graph.op("Mul", [taken, graph.reshape(window, [1, 1, used, 1])])
    # As in `_fourier`: in double precision.
    rows = graph.reshape(taken, [shape[0] * len(places), used * parts])
    onesided = bool(attributes_of(node).get("onesided", 1)) and parts == 1
    matrix = _fourier_matrix(used, used, parts, inverse=False, onesided=onesided)
    wide = graph.cast(rows, TensorProto.DOUBLE)
    product = graph.op("MatMul", [wide, graph.constant(matrix, np.float64)])
    product = graph.cast(product, graph.element_type(signal))
    graph.reshape(product, [shape[0], len(places), matrix.shape[1] // 2, 2], node.output[0])
    return True


def _fourier_matrix(
    used: int, length: int, given_parts: int, inverse: bool, onesided: bool
) -> np.ndarray:
    """The transform's matrix, (used * given_parts, frequencies * parts).

    Parts are real and imaginary: 2, or 1 for real input, and for the output of a one-sided inverse.
    """
    places = length // 2 + 1 if onesided and not inverse else length
    sign = 2j if inverse else -2j
    turns = np.outer(np.arange(used), np.arange(places)) / length
    factors = np.exp(sign * np.pi * turns)
    if inverse:
        factors = factors / length
        if onesided:
            # Frequencies beyond the middle are conjugates of those before it.
            inner = (np.arange(used) > 0) & (np.arange(used) * 2 < length)
            factors = factors * np.where(inner, 2, 1)[:, None]
            factors = factors * (np.arange(used) <= length // 2)[:, None]
            made = np.stack([factors.real, -factors.imag], 1)
            return made[:, :given_parts].reshape(used * given_parts, places)
    real = np.stack([factors.real, factors.imag], -1)
    imaginary = np.stack([-factors.imag, factors.real], -1)
    rows = np.stack([real, imaginary][:given_parts], 1)
    return rows.reshape(used * given_parts, places * 2)


HANDLERS: dict[tuple[str, str], Handler] = {
    ("", "DFT"): _fourier,
    ("", "STFT"): _short_time_fourier,
}

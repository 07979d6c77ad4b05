"""Whole tensors: spectra, axes reversed, and parts without elements."""

from __future__ import annotations

import numpy as np
from onnx import NodeProto, TensorProto

from fewtune.onnx_graph.graph import attributes_of, optional
from fewtune.onnx_graph.operators.builder import GraphBuilder, Handler, Scope

_DFT_OF_LAST_AXES = 20


def _fourier(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """A discrete Fourier transform as a product with a constant matrix."""
    attributes, (data, lengths, axes) = attributes_of(node), optional(node.input, 3)
    shape, length, place = (
        graph.shape(data),
        *(graph.value(name) if name else None for name in (lengths, axes)),
    )
    if shape is None or (lengths and length is None) or (axes and place is None):
        return graph.refuse(node, "has a shape, length or axis that is no constant")
    inverse, onesided = (bool(attributes.get(name, 0)) for name in ("inverse", "onesided"))
    is_new = graph.opset >= _DFT_OF_LAST_AXES
    axis = attributes.get("axis", -2 if is_new else 1) if place is None else int(place.reshape(()))
    axis %= len(shape)
    if axis == len(shape) - 1 or (inverse and onesided):
        return graph.refuse(node, "transforms parts of numbers, or one side back")
    total = shape[axis] if length is None else int(length.reshape(()))
    _transform(graph, data, (axis, total), node.output[0], inverse, onesided)
    return True


def _transform(
    graph: GraphBuilder,
    data: str,
    row: tuple[int, int],
    output: str,
    inverse: bool = False,
    onesided: bool = False,
) -> None:
    """Write a transform of the rows of an axis, of a length to which they are cut or padded."""
    shape, (axis, total) = graph.shape(data), row
    used = min(shape[axis], total)
    # The transformed axis moves last but one, with the parts of its numbers behind it.
    order = [each for each in range(len(shape) - 1) if each != axis] + [axis, len(shape) - 1]
    moved = graph.transpose(data, order)
    if used < shape[axis]:
        moved = graph.slice(moved, len(shape) - 2, 0, used)
    matrix = _fourier_matrix(used, total, shape[-1], inverse, onesided)
    outer = [shape[each] for each in order[:-2]]
    rows = graph.reshape(moved, [int(np.prod(outer, dtype=np.int64)), used * shape[-1]])
    # In double precision: large terms may cancel.
    wide = graph.op("MatMul", [graph.cast(rows, TensorProto.DOUBLE), matrix])
    product = graph.cast(wide, graph.element_type(data))
    result = graph.reshape(product, [*outer, matrix.shape[1] // 2, 2])
    graph.transpose(result, [order.index(each) for each in range(len(shape))], output)


def _short_time_fourier(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Gathered frames of a signal times a constant matrix."""
    signal, step, window, length = optional(node.input, 4)
    shape, windowed = graph.shape(signal), graph.shape(window) if window else None
    stride, size = (graph.value(name) if name else None for name in (step, length))
    if size is None and not length and windowed is not None:
        size = np.array(windowed[0])
    if shape is None or stride is None or size is None:
        return graph.refuse(node, "has a step or length that is no constant")
    used, parts = int(size.reshape(())), shape[2] if len(shape) > 2 else 1
    starts = np.arange(0, shape[1] - used + 1, int(stride.reshape(())))
    places = graph.constant(starts[:, None] + np.arange(used)[None, :], np.int64)
    data = graph.reshape(signal, [*shape[:2], parts])
    taken = graph.op("Gather", [data, places], axis=1)
    if window:
        taken = graph.op("Mul", [taken, graph.reshape(window, [1, 1, used, 1])])
    onesided = bool(attributes_of(node).get("onesided", 1)) and parts == 1
    _transform(graph, taken, (2, used), node.output[0], onesided=onesided)
    return True


def _fourier_matrix(
    used: int, length: int, given_parts: int, inverse: bool, onesided: bool
) -> np.ndarray:
    """The transform's matrix, (used x given parts, frequencies x 2).

    Parts are real and imaginary: 2, or 1 for real input.
    """
    places = length // 2 + 1 if onesided else length
    turns = np.outer(np.arange(used), np.arange(places)) / length
    factors = np.exp((2j if inverse else -2j) * np.pi * turns) / (length if inverse else 1)
    real = np.stack([factors.real, factors.imag], -1)
    imaginary = np.stack([-factors.imag, factors.real], -1)
    rows = np.stack([real, imaginary][:given_parts], 1)
    return rows.reshape(used * given_parts, places * 2)


def _reverse_sequence(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Reverse an axis, as exporters write it."""
    (data, lengths), given = node.input, attributes_of(node)
    shape, known = graph.shape(data), graph.value(lengths)
    axis = given.get("time_axis", 0)
    if shape is None or known is None or (known != shape[axis]).any():
        return graph.refuse(node, "reverses sequences of different or unknown lengths")
    places = graph.constant(np.arange(shape[axis])[::-1], np.int64)
    graph.op("Gather", [data, places], node.output[0], axis=axis)
    return True


def _split(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    if any(0 in (graph.shape(name) or [1]) for name in node.output):
        return graph.refuse(node, "has a part without elements, which TVM cannot store")
    return False


def _split_to_sequence(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """TVM divides by one size into equal parts only."""
    data, named = optional(node.input, 2)
    size, axis = graph.value(named) if named else None, attributes_of(node).get("axis", 0)
    if size is None or size.ndim or graph.shape(data)[axis] % size == 0:
        return False
    return graph.refuse(node, "divides an axis into unequal parts")


def _concat(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """A concatenation without its empty parts, which TVM cannot store if they are constants."""
    kept = [name for name in node.input if 0 not in (graph.shape(name) or [1])]
    if not kept or len(kept) == len(node.input):
        return False
    graph.concat(kept, attributes_of(node)["axis"], node.output[0])
    return True


HANDLERS: dict[tuple[str, str], Handler] = {
    ("", "Concat"): _concat,
    ("", "DFT"): _fourier,
    ("", "ReverseSequence"): _reverse_sequence,
    ("", "Split"): _split,
    ("", "SplitToSequence"): _split_to_sequence,
    ("", "STFT"): _short_time_fourier,
}

"""Whole tensors: spectra, axes reversed, and parts without elements."""

from __future__ import annotations

import numpy as np
from onnx import NodeProto, TensorProto

from fewtune.onnx_graph.graph import attributes_of, optional
from fewtune.onnx_graph.operators.builder import GraphBuilder, Handler, Scope


def _short_time_fourier(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Gathered frames of a real signal times a constant matrix."""
    signal, step, window, length = optional(node.input, 4)
    shape, windowed = graph.shape(signal), graph.shape(window) if window else None
    stride, size = (graph.value(name) if name else None for name in (step, length))
    if size is None and not length and windowed is not None:
        size = np.array(windowed[0])
    if shape is None or shape[2:] not in ([], [1]) or stride is None or size is None:
        return graph.refuse(node, "reads complex numbers, or has a step or length not constant")
    used = int(size.reshape(()))
    starts = np.arange(0, shape[1] - used + 1, int(stride.reshape(())))
    places = graph.constant(starts[:, None] + np.arange(used)[None, :], np.int64)
    frames = graph.op("Gather", [graph.reshape(signal, shape[:2]), places], axis=1)
    if window:
        frames = graph.op("Mul", [frames, window])
    count = used // 2 + 1 if attributes_of(node).get("onesided", 1) else used
    factors = np.exp(-2j * np.pi / used * np.outer(np.arange(used), np.arange(count)))
    matrix = np.stack([factors.real, factors.imag], -1).reshape(used, 2 * count)
    # In double precision: large terms may cancel.
    product = graph.op("MatMul", [graph.cast(frames, TensorProto.DOUBLE), matrix])
    product = graph.cast(product, graph.element_type(signal))
    graph.reshape(product, [shape[0], len(starts), count, 2], node.output[0])
    return True


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


def _concat(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """A concatenation without its empty parts, which TVM cannot store if they are constants."""
    kept = [name for name in node.input if 0 not in (graph.shape(name) or [1])]
    if not kept or len(kept) == len(node.input):
        return False
    graph.concat(kept, attributes_of(node)["axis"], node.output[0])
    return True


HANDLERS: dict[tuple[str, str], Handler] = {
    ("", "Concat"): _concat,
    ("", "ReverseSequence"): _reverse_sequence,
    ("", "Split"): _split,
    ("", "STFT"): _short_time_fourier,
}

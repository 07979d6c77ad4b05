"""Convolutions, poolings and Fourier transforms of windows, as plain convolutions and poolings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import NodeProto

from fewtune.onnx_graph.graph import attributes_of, optional
from fewtune.onnx_graph.operators.builder import GraphBuilder, Handler, Scope

# Since this operator set, ONNX's inference leaves out windows that start behind the end.
_RIGHT_CEIL_MODE = 22


def _padding(
    mode: bytes, sizes: Sequence[int], strides: Sequence[int], reach: Sequence[int]
) -> list[int]:
    """The padding that ``auto_pad`` implies for windows of this reach."""
    totals = [
        max(0, (-(-size // stride) - 1) * stride + width - size) * (mode != b"VALID")
        for size, stride, width in zip(sizes, strides, reach, strict=True)
    ]
    before = [(total + (mode == b"SAME_LOWER")) // 2 for total in totals]
    return [*before, *(total - first for total, first in zip(totals, before, strict=True))]


def _reach(given: dict[str, Any], kernel: Sequence[int]) -> list[int]:
    dilations = given.get("dilations") or [1] * len(kernel)
    return [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]


def _windowed(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Write out the padding of ``auto_pad``.

    TVM pads a convolution's input in a kernel of its own. For a pooling, it rounds strided extents
    down, and ONNX up.
    """
    given, shape = attributes_of(node), graph.shape(node.input[0])
    if any(node.output[1:]):
        return graph.refuse(node, "returns indices")
    mode = given.pop("auto_pad", b"NOTSET")
    kernel = given.get("kernel_shape") or (graph.shape(node.input[1]) or [])[2:]
    strides, reach = given.get("strides") or [1] * len(kernel), kernel
    is_rounded = given.get("ceil_mode") and graph.opset < _RIGHT_CEIL_MODE
    if shape is not None and is_rounded and _ends_behind(given, shape[2:], strides):
        return graph.refuse(node, "counts a window that starts behind the end, by its ceil_mode")
    if mode == b"NOTSET" or shape is None or not kernel:
        return False
    # onnxruntime pads a pooling as if its window were not dilated.
    if not node.op_type.endswith("Pool"):
        reach = _reach(given, kernel)
    given["pads"] = _padding(mode, shape[2:], strides, reach)
    graph.op(node.op_type, node.input, node.output[0], **given)
    return True


def _ends_behind(given: dict[str, Any], sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the last window would start behind the end: onnxruntime leaves it out."""
    pads = given.get("pads") or [0] * 2 * len(sizes)
    reach = _reach(given, given["kernel_shape"])
    for axis, (size, step) in enumerate(zip(sizes, strides, strict=True)):
        end = size + pads[axis]
        last = -(-(end + pads[axis + len(sizes)] - reach[axis]) // step) * step
        if last >= end:
            return True
    return False


def _transposed_convolution(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Write out the padding that ``output_shape`` implies."""
    given = attributes_of(node)
    data, weights = graph.shape(node.input[0]), graph.shape(node.input[1])
    if max(given.get("dilations", [1])) > 1:
        return graph.refuse(node, "is dilated, which no transposed convolution here may be")
    asked = given.pop("output_shape", None)
    if data is None or weights is None or asked is None:
        return False
    (_, _, *sizes), (_, _, *kernel) = data, weights
    count, is_upper = len(sizes), given.pop("auto_pad", b"NOTSET") == b"SAME_UPPER"
    strides = list(given.get("strides", [1] * count))
    added, pads = list(given.get("output_padding", [0] * count)), [0] * 2 * count
    for axis, size in enumerate(asked[-count:]):
        total = strides[axis] * (sizes[axis] - 1) + added[axis] + kernel[axis] - size
        if total < 0:
            added[axis], total = added[axis] - total, 0
        first = total // 2 if is_upper else total - total // 2
        pads[axis], pads[axis + count] = first, total - first
    given |= {"strides": strides, "pads": pads, "output_padding": added}
    graph.op("ConvTranspose", node.input, node.output[0], **given)
    return True


def _short_time_fourier(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """A convolution of a real signal: its filters are the lines of the transform, by the window."""
    signal, step, window, length = optional(node.input, 4)
    shape, stride = graph.shape(signal), graph.value(step)
    taps, size = (graph.value(name) if name else None for name in (window, length))
    if not window and size is not None:
        taps = np.ones(size.item())
    if shape is None or shape[2:] not in ([], [1]) or stride is None or taps is None:
        return graph.refuse(
            node, "reads complex numbers, or its step, window or length is not constant"
        )
    used = taps.size
    count = used // 2 + 1 if attributes_of(node).get("onesided", 1) else used
    lines = np.exp(-2j * np.pi / used * np.outer(np.arange(count), np.arange(used))) * taps
    filters = np.stack([lines.real, lines.imag], 1).reshape(2 * count, 1, used)
    rows = graph.reshape(signal, [shape[0], 1, shape[1]])
    weights = graph.constant(filters, graph.dtype(signal))
    made = graph.op("Conv", [rows, weights], strides=[stride.item()], kernel_shape=[used])
    frames = (shape[1] - used) // stride.item() + 1
    made = graph.transpose(made, [0, 2, 1])
    graph.reshape(made, [shape[0], frames, count, 2], node.output[0])
    return True


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(("AveragePool", "Conv", "ConvInteger", "MaxPool"), _windowed),
    "ConvTranspose": _transposed_convolution,
    "STFT": _short_time_fourier,
}

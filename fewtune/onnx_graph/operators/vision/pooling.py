"""Poolings with implied padding; max pooling with indices, and MaxUnpool."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from onnx import NodeProto

from fewtune.onnx_graph.graph import attributes_of
from fewtune.onnx_graph.operators.builder import GraphBuilder, Handler, Scope

_PAD_AS_INPUT = 11


def _max_pool(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Max pooling with indices: gather all windows, take the largest and its index."""
    if len(node.output) < 2 or not node.output[1]:
        return _write_pads(graph, node, scope)
    data, given = node.input[0], attributes_of(node)
    graph.infer(node)
    shape, pooled = graph.shape(data), graph.shape(node.output[0])
    if shape is None or pooled is None or graph.opset < _PAD_AS_INPUT:
        return graph.refuse(
            node, "returns indices of an input of unknown shape, or has an old form"
        )
    sizes, kernel, axes = shape[2:], list(given["kernel_shape"]), len(shape) - 2
    strides, dilations = (given.get(name) or [1] * axes for name in ("strides", "dilations"))
    reaches = _reaches(pooled[2:], kernel, strides, dilations)
    before, _ = _pads(given, sizes, reaches)
    after = _behind(reaches, before, sizes)
    dtype = graph.dtype(data)
    lowest = -np.inf if dtype.kind == "f" else np.iinfo(dtype).min
    padded = [
        first + extent + last for first, extent, last in zip(before, sizes, after, strict=True)
    ]
    if any(before + after):
        pads = graph.constant([0, 0, *before, 0, 0, *after], np.int64)
        data = graph.op("Pad", [data, pads, graph.constant(lowest, dtype)], mode="constant")
    flat = graph.reshape(data, [*shape[:2], int(np.prod(padded))])
    starts = [np.arange(out) * stride for out, stride in zip(pooled[2:], strides, strict=True)]
    corners = _flat_places(starts, padded)
    inside = [np.arange(size) * dilation for size, dilation in zip(kernel, dilations, strict=True)]
    windows = _flat_places(inside, padded)[:, None] + corners[None, :]
    taken = graph.op("Gather", [flat, graph.constant(windows, np.int64)], axis=2)
    largest = graph.reduce("ReduceMax", taken, [2], keepdims=0)
    graph.reshape(largest, pooled, node.output[0])
    tap = graph.op("ArgMax", [taken], axis=2, keepdims=0)
    # The index in the flattened input is that of the window's corner plus that of the tap.
    order = slice(None, None, -1) if given.get("storage_order") else slice(None)
    factors = [int(np.prod(sizes[order][axis + 1 :])) for axis in range(axes)][order]
    steps = [place * factor for place, factor in zip(inside, factors, strict=True)]
    of_tap = graph.op("Gather", [graph.constant(_sums(steps), np.int64), tap], axis=0)
    first = [(s - b) * f for s, b, f in zip(starts, before, factors, strict=True)]
    images = np.arange(shape[0] * shape[1]).reshape(*shape[:2], 1) * int(np.prod(sizes))
    corner = graph.constant(images + _sums(first)[None, None], np.int64)
    graph.reshape(graph.op("Add", [of_tap, corner]), pooled, node.output[1])
    return True


def _write_pads(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Write out the padding of ``auto_pad``: TVM rounds strided extents down, ONNX up."""
    given, shape = attributes_of(node), graph.shape(node.input[0])
    if given.get("auto_pad", b"NOTSET") == b"NOTSET" or shape is None:
        return False
    sizes, kernel, axes = shape[2:], list(given["kernel_shape"]), len(shape) - 2
    strides = given.get("strides") or [1] * axes
    pooled = [-(-size // stride) for size, stride in zip(sizes, strides, strict=True)]
    # onnxruntime pads as if the window were not dilated.
    before, after = _pads(given, sizes, _reaches(pooled, kernel, strides, [1] * axes))
    written = {**given, "pads": [*before, *after]}
    del written["auto_pad"]
    graph.op(node.op_type, node.input, node.output[0], **written)
    return True


def _lp_pool(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Write out the padding of ``ceil_mode``, in which TVM divides sums by fewer elements."""
    given, shape = attributes_of(node), graph.shape(node.input[0])
    if not given.get("ceil_mode") or shape is None:
        return _write_pads(graph, node, scope)
    sizes, axes, kernel = shape[2:], len(shape) - 2, list(given["kernel_shape"])
    strides, dilations = (given.get(name) or [1] * axes for name in ("strides", "dilations"))
    mode = given.pop("auto_pad", b"NOTSET")
    if mode not in (b"NOTSET", b"VALID"):
        return _write_pads(graph, node, scope)
    before, behind = _pads(given, sizes, [])
    pooled = []
    for axis, extent in enumerate(sizes):
        window = (kernel[axis] - 1) * dilations[axis] + 1
        last = -(-(extent + before[axis] + behind[axis] - window) // strides[axis])
        if last * strides[axis] >= extent + before[axis]:
            last -= 1  # This window would start behind the end.
        pooled.append(last + 1)
    after = _behind(_reaches(pooled, kernel, strides, dilations), before, sizes)
    written = {**given, "pads": [*before, *after], "ceil_mode": 0}
    graph.op(node.op_type, node.input, node.output[0], **written)
    return True


def _reaches(
    pooled: list[int], kernel: list[int], strides: list[int], dilations: list[int]
) -> list[int]:
    """Extent of each padded axis that its windows read."""
    return [
        (out - 1) * stride + (size - 1) * dilation + 1
        for out, size, stride, dilation in zip(pooled, kernel, strides, dilations, strict=True)
    ]


def _behind(reaches: list[int], before: list[int], sizes: list[int]) -> list[int]:
    """Padding behind each axis: the part that its last window reads behind the end."""
    return [
        max(0, reach - first - size)
        for reach, first, size in zip(reaches, before, sizes, strict=True)
    ]


def _pads(
    given: dict[str, Any], sizes: list[int], reaches: list[int]
) -> tuple[list[int], list[int]]:
    """Padding before and behind each axis, from ``pads`` or ``auto_pad``."""
    mode, axes = given.get("auto_pad", b"NOTSET"), len(sizes)
    if mode == b"NOTSET":
        written = list(given.get("pads") or [0] * 2 * axes)
        return written[:axes], written[axes:]
    if mode == b"VALID":
        return [0] * axes, [0] * axes
    totals = [max(0, reach - size) for reach, size in zip(reaches, sizes, strict=True)]
    before = [(total + (mode == b"SAME_LOWER")) // 2 for total in totals]
    return before, [total - first for total, first in zip(totals, before, strict=True)]


def _flat_places(along: list[np.ndarray], sizes: list[int]) -> np.ndarray:
    """Flat indices of all combinations of indices along the axes of a tensor."""
    factors = [int(np.prod(sizes[axis + 1 :])) for axis in range(len(sizes))]
    return _sums([place * factor for place, factor in zip(along, factors, strict=True)])


def _sums(along: list[np.ndarray]) -> np.ndarray:
    return np.array([sum(each) for each in itertools.product(*along)], np.int64)


def _max_unpool(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    data, places = node.input[:2]
    wanted = graph.value(node.input[2]) if len(node.input) > 2 and node.input[2] else None
    shape, given = graph.shape(data), attributes_of(node)
    if shape is None or (wanted is None and len(node.input) > 2 and node.input[2]):
        return graph.refuse(node, "has a shape that is no constant: bind it by --constant")
    kernel, axes = list(given["kernel_shape"]), len(shape) - 2
    strides, pads = given.get("strides") or [1] * axes, given.get("pads") or [0] * 2 * axes
    sizes = [
        (shape[axis + 2] - 1) * strides[axis] + kernel[axis] - pads[axis] - pads[axes + axis]
        for axis in range(axes)
    ]
    whole = [*shape[:2], *sizes] if wanted is None else [int(each) for each in wanted]
    zeros = graph.op(
        "Expand",
        [graph.constant(np.zeros(1, graph.dtype(data))), graph.constant([int(np.prod(whole))])],
    )
    flat = [graph.reshape(each, [int(np.prod(shape))]) for each in (places, data)]
    graph.reshape(graph.op("ScatterElements", [zeros, *flat], axis=0), whole, node.output[0])
    return True


HANDLERS: dict[tuple[str, str], Handler] = {
    ("", "AveragePool"): _write_pads,
    ("", "LpPool"): _lp_pool,
    ("", "MaxPool"): _max_pool,
    ("", "MaxUnpool"): _max_unpool,
}

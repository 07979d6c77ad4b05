"""Convolutions and poolings: implied padding written out, patches assembled or sampled."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import NodeProto

from fewtune.onnx_graph.graph import attributes_of, optional
from fewtune.onnx_graph.operators.builder import GraphBuilder, Handler, Scope


def _col2im(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Each pixel is the sum of the elements of patches that cover it."""
    data, image, block = node.input
    shape, sizes, blocks = graph.shape(data), graph.value(image), graph.value(block)
    if shape is None or sizes is None or blocks is None:
        return graph.refuse(node, "has sizes that are no constants, or an input of unknown shape")
    places = _places(sizes, blocks, attributes_of(node))
    elements, count = int(blocks.prod()), shape[2]
    # Row m of the table has each pixel's m-th element, or the index of a zero behind all elements.
    order = np.argsort(places.reshape(-1), kind="stable")
    pixels = places.reshape(-1)[order]
    covers = np.bincount(pixels[pixels >= 0], minlength=int(sizes.prod()))
    table = np.full((covers.max(), covers.size), elements * count, np.int64)
    inside = np.arange(len(table))[:, None] < covers
    # In the order of pixels, so along the columns of the table.
    table.T[inside.T] = order[pixels >= 0]
    batch, channels = shape[0], shape[1] // elements
    flat = graph.reshape(data, [batch, channels, elements * count])
    zero = graph.constant(np.zeros((batch, channels, 1), graph.dtype(data)))
    taken = graph.op("Gather", [graph.concat([flat, zero], 2), graph.constant(table)], axis=2)
    image_sum = graph.reduce("ReduceSum", taken, [2], keepdims=0)
    graph.reshape(image_sum, [batch, channels, *map(int, sizes)], node.output[0])
    return True


def _places(sizes: np.ndarray, blocks: np.ndarray, given: dict[str, Any]) -> np.ndarray:
    """The pixel of each element of each block, (elements, blocks); -1 in the padding."""
    axes = sizes.size
    strides, dilations = (given.get(name) or [1] * axes for name in ("strides", "dilations"))
    pads = np.array(given.get("pads") or [0] * 2 * axes).reshape(2, axes).T
    pixels = np.pad(np.arange(sizes.prod()).reshape(sizes), pads, constant_values=-1)
    windows = np.lib.stride_tricks.sliding_window_view(pixels, _reach(given, blocks))
    steps = [slice(None, None, each) for each in (*strides, *dilations)]
    return windows[tuple(steps)].reshape(-1, int(blocks.prod())).T


def _deform_conv(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Sample the image at the offsets, then multiply by the filters as one matrix product."""
    data, weight, offset, bias, mask = optional(node.input, 5)
    shapes = [graph.shape(each) for each in (data, weight, offset)]
    if any(shape is None or len(shape) != 4 for shape in shapes):
        return graph.refuse(node, "has inputs of unknown shape, or is not of two dimensions")
    (batch, channels, height, width), (filters, _, rows, columns), (*_, down, across) = shapes
    given = attributes_of(node)
    strides, dilations = given.get("strides") or [1, 1], given.get("dilations") or [1, 1]
    pads = given.get("pads") or [0] * 4
    groups, parts = int(given.get("group", 1)), int(given.get("offset_group", 1))
    taps = rows * columns
    # Positions of a filter's taps without offsets, (taps, down, across) for y and for x.
    base = np.zeros((2, taps, down, across))
    for tap, (row, column) in enumerate(itertools.product(range(rows), range(columns))):
        base[0, tap] = (np.arange(down) * strides[0] - pads[0] + row * dilations[0])[:, None]
        base[1, tap] = (np.arange(across) * strides[1] - pads[1] + column * dilations[1])[None]
    moved = graph.reshape(offset, [batch * parts, taps, 2, down, across])
    moved = graph.transpose(moved, [0, 2, 1, 3, 4])
    grid = []
    for axis, extent in ((1, width), (0, height)):
        place = graph.slice(moved, 1, axis, axis + 1)
        place = graph.op("Add", [place, base[axis][None, None]])
        # GridSample's coordinates: -1 and 1 are the image's outer edges.
        place = graph.op("Add", [graph.op("Mul", [place, 2 / extent]), 1 / extent - 1])
        grid.append(graph.reshape(place, [batch * parts, taps * down, across, 1]))
    image = graph.reshape(data, [batch * parts, channels // parts, height, width])
    mode = "bilinear" if graph.opset < 20 else "linear"
    taken = graph.op("GridSample", [image, graph.concat(grid, 3)], mode=mode, padding_mode="zeros")
    pixels = down * across
    if mask:
        taken = graph.reshape(taken, [batch * parts, channels // parts, taps, pixels])
        factor = graph.reshape(mask, [batch * parts, 1, taps, pixels])
        taken = graph.op("Mul", [taken, factor])
    taken = graph.reshape(taken, [batch, groups, channels // groups * taps, pixels])
    matrix = graph.reshape(weight, [1, groups, filters // groups, channels // groups * taps])
    product = graph.op("MatMul", [matrix, taken])
    shape = [batch, filters, down, across]
    if not bias:
        graph.reshape(product, shape, node.output[0])
        return True
    product = graph.reshape(product, shape)
    graph.op("Add", [product, graph.reshape(bias, [1, filters, 1, 1])], node.output[0])
    return True


def _roi_align(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Scale the regions first: TVM 0.27 subtracts half a pixel before it scales."""
    given = attributes_of(node)
    scale = float(given.pop("spatial_scale", 1.0))
    if scale == 1.0:
        return False
    data, regions, images = node.input
    scaled = graph.op("Mul", [regions, scale])
    graph.op("RoiAlign", [data, scaled, images], node.output[0], spatial_scale=1.0, **given)
    return True


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


def _convolution(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Write out the padding of ``auto_pad``, so that no kernel of its own pads."""
    given, shapes = attributes_of(node), [graph.shape(name) for name in node.input[:2]]
    mode = given.pop("auto_pad", b"NOTSET")
    if mode == b"NOTSET" or any(shape is None for shape in shapes):
        return False
    (_, _, *sizes), (_, _, *kernel) = shapes
    strides = given.get("strides") or [1] * len(sizes)
    given["pads"] = _padding(mode, sizes, strides, _reach(given, kernel))
    graph.op(node.op_type, node.input, node.output[0], **given)
    return True


def _pooling(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Write out the padding of ``auto_pad``: TVM rounds strided extents down, ONNX up."""
    given, shape = attributes_of(node), graph.shape(node.input[0])
    if any(node.output[1:]) or (node.op_type == "LpPool" and given.get("ceil_mode")):
        return graph.refuse(node, "returns indices, or sums windows beyond the end")
    mode = given.pop("auto_pad", b"NOTSET")
    if mode == b"NOTSET" or shape is None:
        return False
    kernel = given["kernel_shape"]
    strides = given.get("strides") or [1] * len(kernel)
    # onnxruntime pads as if the window were not dilated.
    given["pads"] = _padding(mode, shape[2:], strides, kernel)
    graph.op(node.op_type, node.input, node.output[0], **given)
    return True


def _transposed_convolution(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Write out the padding that ``auto_pad`` or ``output_shape`` implies."""
    given = attributes_of(node)
    data, weights = graph.shape(node.input[0]), graph.shape(node.input[1])
    if max(given.get("dilations", [1])) > 1:
        return graph.refuse(node, "is dilated, which no transposed convolution here may be")
    mode, asked = given.pop("auto_pad", b"NOTSET"), given.pop("output_shape", None)
    if data is None or weights is None or (asked is None and mode == b"NOTSET"):
        return False
    (_, _, *sizes), (_, _, *kernel) = data, weights
    count = len(sizes)
    strides = list(given.get("strides", [1] * count))
    added = list(given.get("output_padding", [0] * count))
    pads = list(given.get("pads", [0] * 2 * count)) if mode != b"VALID" else [0] * 2 * count
    if asked is None and mode != b"VALID":
        asked = [size * stride for size, stride in zip(sizes, strides, strict=True)]
    for axis, size in enumerate((asked or [])[-count:]):
        total = strides[axis] * (sizes[axis] - 1) + added[axis] + kernel[axis] - size
        if total < 0:
            added[axis], total = added[axis] - total, 0
        first = total // 2 if mode == b"SAME_UPPER" else total - total // 2
        pads[axis], pads[axis + count] = first, total - first
    given |= {"strides": strides, "pads": pads, "output_padding": added}
    graph.op("ConvTranspose", node.input, node.output[0], **given)
    return True


HANDLERS: dict[tuple[str, str], Handler] = {
    **{("", name): _convolution for name in ("Conv", "ConvInteger")},
    **{("", name): _pooling for name in ("AveragePool", "LpPool", "MaxPool")},
    ("", "Col2Im"): _col2im,
    ("", "ConvTranspose"): _transposed_convolution,
    ("", "DeformConv"): _deform_conv,
    ("", "RoiAlign"): _roi_align,
}

"""Col2Im, DeformConv, RoiAlign and AffineGrid: patches assembled or sampled."""

from __future__ import annotations

import itertools

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
    axes = sizes.size
    given = attributes_of(node)
    strides, dilations = (given.get(name) or [1] * axes for name in ("strides", "dilations"))
    pads = given.get("pads") or [0] * 2 * axes
    places = _places(sizes, blocks, strides, dilations, pads)
    elements, count = int(blocks.prod()), shape[2]
    if places is None or places.size != elements * count:
        return graph.refuse(node, "has an input of another size than its attributes make")
    # Row m of the table has each pixel's m-th element, or the index of a zero behind all elements.
    covering: list[list[int]] = [[] for _ in range(int(sizes.prod()))]
    for element, pixel in enumerate(places.reshape(-1)):
        if pixel >= 0:
            covering[pixel].append(element)
    most = max(1, *map(len, covering))
    table = np.full((most, len(covering)), elements * count, np.int64)
    for pixel, found in enumerate(covering):
        table[: len(found), pixel] = found
    batch, channels = shape[0], shape[1] // elements
    flat = graph.reshape(data, [batch, channels, elements * count])
    zero = graph.constant(np.zeros((batch, channels, 1), graph.dtype(data)))
    flat = graph.concat([flat, zero], 2)
    taken = graph.op("Gather", [flat, graph.constant(table)], axis=2)
    image_sum = graph.reduce("ReduceSum", taken, [2], keepdims=0)
    graph.reshape(image_sum, [batch, channels, *map(int, sizes)], node.output[0])
    return True


def _places(
    sizes: np.ndarray, blocks: np.ndarray, strides: object, dilations: object, pads: object
) -> np.ndarray | None:
    """The pixel of each element of each block, (elements, blocks); -1 in the padding."""
    axes = sizes.size
    along = []
    for axis in range(axes):
        span = dilations[axis] * (int(blocks[axis]) - 1) + 1
        steps = (int(sizes[axis]) + pads[axis] + pads[axes + axis] - span) // strides[axis] + 1
        if steps < 1:
            return None
        within = np.arange(int(blocks[axis]))[:, None] * dilations[axis]
        place = within + np.arange(steps)[None, :] * strides[axis] - pads[axis]
        along.append(np.where((place >= 0) & (place < int(sizes[axis])), place, -1))
    rows = []
    for element in itertools.product(*(range(int(each)) for each in blocks)):
        flat, inside = np.zeros(1, np.int64), np.ones(1, bool)
        for axis in range(axes):
            place = along[axis][element[axis]]
            flat = (flat[:, None] * int(sizes[axis]) + place[None, :]).reshape(-1)
            inside = (inside[:, None] & (place >= 0)[None, :]).reshape(-1)
        rows.append(np.where(inside, flat, -1))
    return np.stack(rows)


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
    taps, dtype = rows * columns, graph.dtype(data)
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
        place = graph.op("Add", [place, graph.constant(base[axis][None, None], dtype)])
        # GridSample's coordinates: -1 and 1 are the image's outer edges.
        place = graph.op("Mul", [place, graph.constant(2 / extent, dtype)])
        place = graph.op("Add", [place, graph.constant(1 / extent - 1, dtype)])
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
    scaled = graph.op("Mul", [regions, graph.constant(scale, graph.dtype(regions))])
    graph.op("RoiAlign", [data, scaled, images], node.output[0], spatial_scale=1.0, **given)
    return True


def _affine_grid(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """A regular grid times each image's matrix; ONNX's own function fails for one image."""
    theta, size = node.input
    sizes = graph.value(size)
    if sizes is None:
        return graph.refuse(node, "has a size that is no constant: bind it by --constant")
    extents = [int(each) for each in sizes[2:]]
    aligned = attributes_of(node).get("align_corners", 0)
    along = [
        np.linspace(-1, 1, extent) if aligned else (2 * np.arange(extent) + 1) / extent - 1
        for extent in extents
    ]
    # The innermost axis is x, the first coordinate.
    places = [each.reshape(-1) for each in np.meshgrid(*along, indexing="ij")][::-1]
    grid = np.stack([*places, np.ones_like(places[0])], 1)[None]
    turned = graph.transpose(theta, [0, 2, 1])
    moved = graph.op("MatMul", [graph.constant(grid, graph.dtype(theta)), turned])
    graph.reshape(moved, [int(sizes[0]), *extents, len(extents)], node.output[0])
    return True


HANDLERS: dict[tuple[str, str], Handler] = {
    ("", "AffineGrid"): _affine_grid,
    ("", "Col2Im"): _col2im,
    ("", "DeformConv"): _deform_conv,
    ("", "RoiAlign"): _roi_align,
}

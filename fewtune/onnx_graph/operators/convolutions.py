"""Transposed convolutions with dilations, or with padding that other attributes imply."""

from __future__ import annotations

import numpy as np
from onnx import NodeProto

from fewtune.onnx_graph.graph import attributes_of
from fewtune.onnx_graph.operators.builder import GraphBuilder, Handler, Scope

_PAD_AS_INPUT = 11


def _conv_transpose(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Write the padding out; replace dilated constant weights by a plain convolution."""
    given = attributes_of(node)
    data, kernel = graph.shape(node.input[0]), graph.shape(node.input[1])
    if data is None or kernel is None:
        return False
    count = len(data) - 2
    automatic = given.get("auto_pad", "NOTSET")
    automatic = automatic.decode() if isinstance(automatic, bytes) else automatic
    asked = given.get("output_shape")
    dilations = list(given.get("dilations", [1] * count))
    values = graph.value(node.input[1]) if max(dilations) > 1 else None
    if asked is None and automatic == "NOTSET" and values is None:
        return False
    strides = list(given.get("strides", [1] * count))
    added = list(given.get("output_padding", [0] * count))
    pads = list(given.get("pads", [0] * 2 * count))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel[2:], dilations, strict=True)]
    if automatic == "VALID":
        pads = [0] * 2 * count
    if asked is None and automatic.startswith("SAME"):
        asked = [n * s for n, s in zip(data[2:], strides, strict=True)]
    for axis, size in enumerate((asked or [])[-count:]):
        total = strides[axis] * (data[2 + axis] - 1) + added[axis] + reach[axis] - size
        if total < 0:
            added[axis], total = added[axis] - total, 0
        first = total // 2 if automatic == "SAME_UPPER" else total - total // 2
        pads[axis], pads[axis + count] = first, total - first
    group = given.get("group", 1)
    if values is not None:
        if graph.opset < _PAD_AS_INPUT:
            return graph.refuse(node, "is dilated: export the model with opset 11 or later")
        before = [r - 1 - p for r, p in zip(reach, pads[:count], strict=True)]
        after = [r - 1 - p + a for r, p, a in zip(reach, pads[count:], added, strict=True)]
        spread, borders = _spread(graph, node.input[0], strides, before, after)
        backward = graph.constant(_reversed(values, group), hint=f"{node.input[1]}_reversed")
        graph.op(
            "Conv",
            [spread, backward, *node.input[2:]],
            node.output[0],
            dilations=dilations,
            pads=borders,
            group=group,
        )
        return True
    graph.op(
        "ConvTranspose",
        node.input,
        node.output[0],
        strides=strides,
        dilations=dilations if max(dilations) > 1 else None,
        pads=pads,
        output_padding=added,
        group=group,
    )
    return True


def _spread(
    graph: GraphBuilder, data: str, strides: list[int], before: list[int], after: list[int]
) -> tuple[str, list[int]]:
    """Put zeros between the elements of data: a stride from one element to the next.

    The weights get no zeros: an infinite element times zero is NaN.

    Returns
    -------
    spread : str
    pads : list of int
        Padding that the plain convolution still needs.
    """
    shape = graph.shape(data)
    count, sizes = len(strides), [n * s for n, s in zip(shape[2:], strides, strict=True)]
    if max(strides) > 1:
        apart = [each for size in shape[2:] for each in (size, 1)]
        widths = [each for stride in strides for each in (0, stride - 1)]
        pads = graph.constant([0] * (2 + 2 * count) + [0, 0, *widths], np.int64)
        data = graph.op("Pad", [graph.reshape(data, [*shape[:2], *apart]), pads])
        data = graph.reshape(data, [*shape[:2], *sizes])
    after = [last + 1 - stride for last, stride in zip(after, strides, strict=True)]
    for axis, (first, last) in enumerate(zip(before, after, strict=True)):
        if min(first, last) < 0:
            begin, end = max(0, -first), sizes[axis] + min(0, last)
            data = graph.slice(data, 2 + axis, begin, end)
    return data, [max(0, each) for each in (*before, *after)]


def _reversed(weights: np.ndarray, group: int) -> np.ndarray:
    """Weights of the plain convolution that equals the transposed one: reversed, per group."""
    channels, filters, *kernel = weights.shape
    parts = weights.reshape(group, channels // group, filters, *kernel).swapaxes(1, 2)
    backwards = (slice(None, None, -1),) * len(kernel)
    backward = parts.reshape(group * filters, channels // group, *kernel)
    return np.ascontiguousarray(backward[(slice(None), slice(None), *backwards)])


HANDLERS: dict[tuple[str, str], Handler] = {("", "ConvTranspose"): _conv_transpose}

"""Transposed convolutions whose attributes imply the padding."""

from __future__ import annotations

import numpy as np
from onnx import NodeProto

from fewtune.onnx_graph.graph import attributes_of
from fewtune.onnx_graph.operators.builder import GraphBuilder, Handler, Scope


def _conv_transpose(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Write out implied pads, and insert the zeros of dilations into constant weights."""
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
    weight = node.input[1]
    if values is not None:
        wide = np.zeros((*values.shape[:2], *reach), values.dtype)
        wide[(slice(None), slice(None), *(slice(None, None, d) for d in dilations))] = values
        weight = graph.constant(wide, hint=f"{weight}_dilated")
        dilations = [1] * count
    graph.op(
        "ConvTranspose",
        [node.input[0], weight, *node.input[2:]],
        node.output[0],
        strides=strides,
        dilations=dilations if max(dilations) > 1 else None,
        pads=pads,
        output_padding=added,
        group=given.get("group", 1),
    )
    return True


HANDLERS: dict[tuple[str, str], Handler] = {("", "ConvTranspose"): _conv_transpose}

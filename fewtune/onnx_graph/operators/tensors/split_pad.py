"""Split, Pad, ExpandDims and TopK in forms that TVM's importer lacks."""

from __future__ import annotations

import numpy as np
from onnx import NodeProto, TensorProto

from fewtune.onnx_graph.graph import AXES_AS_INPUT, attributes_of, optional
from fewtune.onnx_graph.operators.builder import MICROSOFT, GraphBuilder, Handler, Scope

# Integer types that TVM cannot sort.
_UNSORTED = frozenset({TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT16})


def _split(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """A split with empty parts, which TVM lacks."""
    given, shape = attributes_of(node), graph.shape(node.input[0])
    data, named = optional(node.input, 2)
    sizes = graph.value(named) if named else given.get("split")
    if shape is None or sizes is None or all(sizes):
        return False
    axis = int(given.get("axis", 0)) % len(shape)
    kept = []
    for name, size in zip(node.output, sizes, strict=True):
        if size:
            kept.append((name, int(size)))
        elif name:
            empty = [*shape[:axis], 0, *shape[axis + 1 :]]
            nothing = graph.constant(np.zeros(empty, graph.dtype(data)))
            graph.op("Identity", [nothing], name)
    names = [name for name, _ in kept]
    if len(kept) < 2:
        for name in names:
            graph.op("Identity", [data], name)
    elif graph.opset < AXES_AS_INPUT:
        graph.ops("Split", [data], names, axis=axis, split=[size for _, size in kept])
    else:
        wanted = graph.constant([size for _, size in kept], np.int64)
        graph.ops("Split", [data, wanted], names, axis=axis)
    return True


def _pad(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """A wrapping pad with negative widths: slice first, then pad."""
    given, shape = attributes_of(node), graph.shape(node.input[0])
    data, pads, value, axes = optional(node.input, 4)
    widths = graph.value(pads) if pads else None
    if given.get("mode", b"constant") != b"wrap" or shape is None or widths is None:
        return False
    known = graph.value(axes) if axes else np.arange(len(shape))
    if known is None or not (widths < 0).any():
        return False
    count = len(known)
    for axis, before, behind in zip(known, widths[:count], widths[count:], strict=True):
        place = int(axis) % len(shape)
        begin, end = max(0, -int(before)), shape[place] - max(0, -int(behind))
        if begin or end < shape[place]:
            data = graph.slice(data, place, begin, end)
    inputs = [data, graph.constant(np.maximum(widths, 0)), value, axes]
    while not inputs[-1]:
        inputs.pop()
    graph.op("Pad", inputs, node.output[0], mode="wrap")
    return True


def _expand_dims(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Operator of onnxruntime from before Unsqueeze had its axes as an input."""
    data, axis = node.input
    place, shape = graph.value(axis), graph.shape(data)
    if place is None or place.size != 1 or shape is None:
        return graph.refuse(node, "has an axis that is no constant: bind it by --constant")
    graph.unsqueeze(data, int(place.reshape(())) % (len(shape) + 1), node.output[0])
    return True


def _top_k(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """TopK of small integers, through int32."""
    kind = graph.element_type(node.input[0])
    if kind not in _UNSORTED:
        return False
    values, places = optional(node.output, 2)
    wide = graph.fresh(f"{values or places}_wide")
    inputs = [graph.cast(node.input[0], TensorProto.INT32), *node.input[1:]]
    graph.ops("TopK", inputs, [wide, places], **attributes_of(node))
    if values:
        graph.cast(wide, kind, values)
    return True


HANDLERS: dict[tuple[str, str], Handler] = {
    ("", "Pad"): _pad,
    ("", "Split"): _split,
    ("", "TopK"): _top_k,
    (MICROSOFT, "ExpandDims"): _expand_dims,
}

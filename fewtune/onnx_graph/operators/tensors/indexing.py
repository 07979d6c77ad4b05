"""Elements gathered or scattered along an axis."""

from __future__ import annotations

import numpy as np
from onnx import NodeProto, TensorProto

from fewtune.onnx_graph.graph import attributes_of
from fewtune.onnx_graph.operators.builder import GraphBuilder, Handler, Scope


def _tensor_scatter(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Write an update into a cache: select the new or the old element at each index."""
    cache, update, indices = [*node.input, ""][:3]
    shape, added, attributes = graph.shape(cache), graph.shape(update), attributes_of(node)
    if shape is None or added is None:
        return graph.refuse(node, "has an input whose shape is not known before the model runs")
    axis = int(attributes.get("axis", -2)) % len(shape)
    extent, length = shape[axis], added[axis]
    wide = [1] * len(shape)
    wide[axis] = extent
    place = graph.constant(np.arange(extent).reshape(wide), np.int64)
    if indices:
        first = graph.cast(indices, TensorProto.INT64)
        first = graph.reshape(first, [shape[0], *([1] * (len(shape) - 1))])
        place = graph.op("Sub", [place, first])
        if attributes.get("mode") == b"circular":
            place = graph.op("Mod", [place, graph.constant(extent, np.int64)])
    bounds = [graph.constant(each, np.int64) for each in (0, length - 1)]
    within = graph.op("Max", [graph.op("Min", [place, bounds[1]]), bounds[0]])
    is_new = graph.op("Equal", [place, within])
    within = graph.op("Expand", [within, graph.constant(shape, np.int64)])
    new = graph.op("GatherElements", [update, within], axis=axis)
    graph.op("Where", [is_new, new, cache], node.output[0])
    return True


def _reverse_sequence(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Reverse each sequence up to its own length; elements behind it stay."""
    data, lengths = node.input
    shape, attributes = graph.shape(data), attributes_of(node)
    if shape is None:
        return graph.refuse(node, "has an input whose shape is not known before the model runs")
    batch, axis = (
        int(attributes.get(name, way)) for name, way in (("batch_axis", 1), ("time_axis", 0))
    )
    wide = [
        [shape[each] if each == one else 1 for each in range(len(shape))] for one in (axis, batch)
    ]
    place = graph.constant(np.arange(shape[axis]).reshape(wide[0]), np.int64)
    length = graph.reshape(graph.cast(lengths, TensorProto.INT64), wide[1])
    from_end = graph.op("Sub", [graph.op("Sub", [length, place]), graph.constant(1, np.int64)])
    taken = graph.op("Where", [graph.op("Less", [place, length]), from_end, place])
    taken = graph.op("Expand", [taken, graph.constant(shape, np.int64)])
    graph.op("GatherElements", [data, taken], node.output[0], axis=axis)
    return True


def _compress(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    data, condition = node.input
    shape, wanted = graph.shape(data), graph.value(condition)
    if shape is None or wanted is None:
        return graph.refuse(node, "has a condition that depends on the input's values")
    axis = attributes_of(node).get("axis")
    if axis is None:
        data, axis = graph.reshape(data, [int(np.prod(shape))]), 0
    places = graph.constant(np.flatnonzero(wanted), np.int64)
    graph.op("Gather", [data, places], node.output[0], axis=int(axis))
    return True


HANDLERS: dict[tuple[str, str], Handler] = {
    ("", "Compress"): _compress,
    ("", "ReverseSequence"): _reverse_sequence,
    ("", "TensorScatter"): _tensor_scatter,
}

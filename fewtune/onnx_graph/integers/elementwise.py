"""Clips, sums, means and copies of dequantised bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from onnx import NodeProto, TensorProto

from fewtune.onnx_graph.graph import attributes_of, optional
from fewtune.onnx_graph.integers.affine import (
    Bytes,
    Scaled,
    number,
    parameters,
    quantised,
    scaled_bytes,
)
from fewtune.onnx_graph.integers.walk import QUANTIZE, Walk


def bounded(walk: Walk, node: NodeProto, least: float, most: float) -> bool:
    """Clip a deferred tensor: bounds of floats become bounds of bytes."""
    found = walk.scaled(node.input[0])
    if found is None:
        return False
    return walk.defer(node.output[0], found.bounded(least, most))


def clip(walk: Walk, node: NodeProto) -> bool:
    """A ``Clip`` with constant bounds."""
    given = attributes_of(node)
    bounds: list[float] = []
    names = optional(node.input[1:], 2)
    for name, key, default in zip(names, ("min", "max"), (-np.inf, np.inf), strict=True):
        value = number(walk.graph, name) if name else given.get(key, default)
        if value is None or np.isnan(value):
            return False
        bounds.append(float(value))
    return bounds[0] <= bounds[1] and bounded(walk, node, *bounds)


def added(walk: Walk, node: NodeProto) -> bool:
    """The sum of two dequantised tensors, in units of the second one's scale."""
    if len(node.input) != 2:
        return False
    first, second = (walk.bytes_of(name) for name in node.input)
    if first is None or second is None:
        return False
    graph = walk.graph
    data = [graph.cast(each.name, TensorProto.FLOAT) for each in (first, second)]
    ratio = np.float64(first.scale) / np.float64(second.scale)
    if ratio != 1:
        data[0] = graph.op("Mul", [data[0], graph.constant(np.float32(ratio))])
    total = graph.op("Add", data)
    offset = -sum(np.float64(each.scale) * each.zero for each in (first, second))
    scaled = Scaled(total, np.array(np.float64(second.scale)), np.array(offset))
    return walk.defer(node.output[0], scaled)


def moved(walk: Walk, node: NodeProto) -> bool:
    """An operator that only moves elements, or takes the largest: applied to the bytes."""
    found = walk.bytes_of(node.input[0])
    if found is None or len([name for name in node.output if name]) != len(node.output):
        return False
    if node.op_type == "MaxPool" and len(node.output) > 1:
        return False
    for name in node.input[1:]:
        walk.write(name)
    return _with_bytes(walk, node, [found.name, *node.input[1:]], found)


def resize(walk: Walk, node: NodeProto) -> bool:
    """A ``Resize`` to nearest neighbours, which moves bytes."""
    given = attributes_of(node)
    outside = given.get("coordinate_transformation_mode", b"") == b"tf_crop_and_resize"
    if given.get("mode", b"nearest") != b"nearest" or outside:
        return False
    return moved(walk, node)


def _with_bytes(walk: Walk, node: NodeProto, inputs: list[str], like: Bytes) -> bool:
    graph = walk.graph
    outputs = [graph.fresh(f"{name}_bytes") for name in node.output]
    copy = NodeProto.FromString(node.SerializeToString())
    copy.input[:], copy.output[:] = inputs, outputs
    copy.name = outputs[0]
    graph.add(copy, {})
    for name, output in zip(node.output, outputs, strict=True):
        walk.defer(name, replace(like, name=output))
    return True


def concatenation(walk: Walk, node: NodeProto) -> bool:
    """Concatenate bytes of one scale, or of several if the result is only quantised again."""
    parts = [walk.floats.get(name) for name in node.input]
    if any(part is None for part in parts):
        return False
    like = parts[0]
    alike = isinstance(like, Bytes) and all(
        isinstance(part, Bytes) and part.is_like(like) for part in parts
    )
    if alike:
        return _with_bytes(walk, node, [part.name for part in parts], like)
    readers = walk.readers.get(node.output[0], [])
    if len(readers) != 1 or readers[0] is None or readers[0].op_type != QUANTIZE:
        return False
    _, scale, zero = optional(readers[0].input, 3)
    kind = walk.graph.element_type(zero) if zero else TensorProto.UINT8
    found = parameters(walk.graph, scale, zero, kind)
    scaled = [walk.scaled(name) for name in node.input]
    if found is None or any(part is None for part in scaled):
        return False
    like = Bytes("", *found)
    names = [
        part.name
        if isinstance(part, Bytes) and part.is_like(like)
        else quantised(walk.graph, each, *found)
        for part, each in zip(parts, scaled, strict=True)
    ]
    return _with_bytes(walk, node, names, like)


def average(walk: Walk, node: NodeProto) -> bool:
    """The mean of bytes, scaled afterwards."""
    found, given = walk.bytes_of(node.input[0]), attributes_of(node)
    if found is None:
        return False
    # Zeros of the padding that are counted are not the bytes' zero point.
    if given.get("count_include_pad") and found.zero and any(given.get("pads", [])):
        return False
    graph = walk.graph
    for name in node.input[1:]:
        walk.write(name)
    output = graph.fresh(f"{node.output[0]}_mean")
    copy = NodeProto.FromString(node.SerializeToString())
    copy.input[0], copy.output[0] = graph.cast(found.name, TensorProto.FLOAT), output
    copy.name = output
    graph.add(copy, {})
    return walk.defer(node.output[0], replace(scaled_bytes(found), name=output))

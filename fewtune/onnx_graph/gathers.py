"""Gathers with a constant index become slices; products of slices become one product.

Attention is exported with one product for queries, keys and values. Its result is reshaped,
transposed, and taken apart by three gathers with a constant index. A gather reads its index from
memory: TVM fuses nothing with it, and no rule here schedules it. A slice is fused with its
readers. If it comes before the transpose, the whole transposed tensor is never written.

A recurrent layer that an exporter unrolled multiplies each step's input by the same weights, and
so reads them at every step. One product of all steps reads them once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from fewtune.onnx_graph.graph import (
    AXES_AS_INPUT,
    STANDARD,
    drop_unused_initializers,
    element_count,
    has_nested_graphs,
    opset_of,
    set_nodes,
    static_shape,
)

# Axes of the tensors whose slices are multiplied, and inputs of a Slice besides its data.
_AXES, _BOUNDS = 3, 3
_INDICES = frozenset({TensorProto.INT64, TensorProto.INT32})


class _Index(NamedTuple):
    """The one index that a gather reads, and whether the axis stays with extent 1."""

    axis: int
    position: int
    keeps_axis: bool


def slices_for_gathers(model: ModelProto) -> None:
    """Turn gathers of one constant index into slices, in place, before a transpose if possible.

    Parameters
    ----------
    model : ModelProto
        Of at least opset 10, with inferred shapes. A model with nested graphs, which may read the
        transposed tensor, is left as it is.
    """
    if has_nested_graphs(model):
        return
    indices = _constant_indices(model)
    if not indices:
        return
    nodes = list(model.graph.node)
    readers = Counter(value.name for value in model.graph.output)
    readers.update(name for node in nodes for name in node.input)
    gathered = Counter(node.input[0] for node in nodes if node.output[0] in indices)
    # A transpose with other readers has to stay, so nothing is gained before it.
    transposes = {
        node.output[0]: node
        for node in nodes
        if node.op_type == "Transpose"
        and node.attribute
        and readers[node.output[0]] == gathered[node.output[0]] > 0
    }
    result: list[NodeProto] = []
    for node in nodes:
        if node.output[0] in indices:
            before = transposes.get(node.input[0])
            result += _sliced(model, node, indices[node.output[0]], before)
        elif node.output[0] not in transposes:
            result.append(node)
    set_nodes(model, result)
    drop_unused_initializers(model)


def products_of_slices(model: ModelProto) -> None:
    """Join products of a tensor's slices with the same weights into one, in place.

    Each product's result is gathered from the joint one. The index is an argument of the gather's
    kernel, so one kernel serves all, with whatever is fused into it.

    Parameters
    ----------
    model : ModelProto
        With inferred shapes. A model with nested graphs is left as it is.
    """
    if has_nested_graphs(model):
        return
    groups: dict[tuple[Any, ...], list[_SliceProduct]] = {}
    for part in _slice_products(model):
        key = (part.data, part.axis, part.node.op_type, *part.node.input[1:])
        attributes = sorted(each.SerializeToString() for each in part.node.attribute)
        groups.setdefault((*key, *attributes), []).append(part)
    wanted = [
        group for group in groups.values() if len(group) > 1 and 2 * len(group) > group[0].extent
    ]
    if not wanted:
        return
    written: dict[str, list[NodeProto]] = {}
    for group in wanted:
        for part, nodes in zip(group, _joined(model, group), strict=True):
            written[part.node.output[0]] = nodes
    result: list[NodeProto] = []
    for node in model.graph.node:
        result += written.get(node.output[0], [node])
    read = {value.name for value in model.graph.output}
    kept: list[NodeProto] = []
    for node in reversed(result):
        if read.intersection(node.output):
            read.update(node.input)
            kept.append(node)
    set_nodes(model, reversed(kept))
    drop_unused_initializers(model)


class _SliceProduct(NamedTuple):
    """A product whose rows are the slice of a tensor at one index of an axis."""

    node: NodeProto
    data: str
    axis: int
    position: int
    shape: list[int]

    @property
    def extent(self) -> int:
        """Extent of that axis of the tensor."""
        return self.shape[self.axis]


def _slice_products(model: ModelProto) -> list[_SliceProduct]:
    """Products with constant weights whose rows are slices of tensors of three axes."""
    graph = model.graph
    shapes = {value.name: static_shape(value) for value in [*graph.input, *graph.value_info]}
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    producers = {name: node for node in graph.node for name in node.output}

    def number(name: str) -> int | None:
        """A constant of one integer."""
        tensor = tensors.get(name)
        if tensor is None or tensor.data_type not in _INDICES or element_count(tensor) != 1:
            return None
        return int(numpy_helper.to_array(tensor).reshape(()))

    def sliced(name: str) -> NodeProto | None:
        """The Slice whose result, with an axis squeezed, is this value."""
        squeeze = producers.get(name)
        if squeeze is None or squeeze.op_type != "Squeeze":
            return None
        node = producers.get(squeeze.input[0])
        is_whole = node is not None and node.op_type == "Slice" and len(node.input) == _BOUNDS + 1
        return node if is_whole else None

    found = []
    for node in graph.node:
        part = sliced(node.input[0]) if _multiplies(node, tensors) else None
        shape = shapes.get(part.input[0]) if part is not None else None
        if part is None or shape is None or len(shape) != _AXES:
            continue
        begin, end, axis = (number(name) for name in part.input[1:])
        if begin is None or end != begin + 1 or axis not in (0, 1):
            continue
        rows = [extent for each, extent in enumerate(shape) if each != axis]
        if begin >= 0 and shapes.get(node.input[0]) == rows:
            found.append(_SliceProduct(node, part.input[0], axis, begin, shape))
    return found


def _multiplies(node: NodeProto, tensors: Mapping[str, TensorProto]) -> bool:
    """Whether a node multiplies rows by constant weights; any bias is the same for each row."""
    if node.op_type not in ("Gemm", "MatMul") or not all(n in tensors for n in node.input[1:]):
        return False
    if any(each.name == "transA" and each.i for each in node.attribute):
        return False
    ranks = [len(tensors[name].dims) for name in node.input[1:]]
    return ranks[0] == _AXES - 1 and all(rank == 1 for rank in ranks[1:])


def _joined(model: ModelProto, group: list[_SliceProduct]) -> list[list[NodeProto]]:
    """The nodes that replace each product; those of the first begin with the joint product."""
    first = group[0]
    name, *leading = first.node.output[0], *first.shape[:2]
    shape = _array(model, f"{name}_shape", np.array([leading[0] * leading[1], first.shape[2]]))
    rows = _node("Reshape", [first.data, shape], f"{name}_rows")
    product = NodeProto.FromString(first.node.SerializeToString())
    product.input[0], product.output[0] = rows.output[0], f"{name}_all"
    product.name = product.output[0]
    numbers = np.arange(leading[0] * leading[1]).reshape(leading)
    nodes = []
    for part in group:
        result = part.node.output[0]
        taken = np.asarray(numbers.take(part.position, part.axis))
        indices = _array(model, f"{result}_indices", taken)
        gather = _node("Gather", [product.output[0], indices], result, axis=0)
        gather.name = part.node.name or result
        nodes.append([gather])
    nodes[0] = [rows, product, *nodes[0]]
    return nodes


def _constant_indices(model: ModelProto) -> dict[str, _Index]:
    """By output, the index of each gather that reads one constant index within its axis."""
    graph = model.graph
    shapes = {value.name: static_shape(value) for value in [*graph.input, *graph.value_info]}
    constants = {
        tensor.name: tensor
        for tensor in graph.initializer
        if tensor.data_type in _INDICES and len(tensor.dims) <= 1 and element_count(tensor) == 1
    }
    found = {}
    for node in graph.node:
        if node.op_type != "Gather" or node.domain not in STANDARD:
            continue
        shape, constant = shapes.get(node.input[0]), constants.get(node.input[1])
        axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
        if not shape or constant is None or not -len(shape) <= axis < len(shape):
            continue
        extent = shape[axis]
        index = int(numpy_helper.to_array(constant).reshape(()))
        if -extent <= index < extent:
            found[node.output[0]] = _Index(axis % len(shape), index % extent, bool(constant.dims))
    return found


def _sliced(
    model: ModelProto, gather: NodeProto, index: _Index, transpose: NodeProto | None
) -> list[NodeProto]:
    """The nodes that replace a gather: a slice, of the transpose's input if there is one."""
    result, data, axis = gather.output[0], gather.input[0], index.axis
    order: list[int] = []
    if transpose is not None:
        order = list(transpose.attribute[0].ints)
        data, axis = transpose.input[0], order[axis]
    bounds = {"from": index.position, "to": index.position + 1, "axis": axis}
    inputs = [data, *(_number(model, f"{result}_{name}", at) for name, at in bounds.items())]
    nodes = [_node("Slice", inputs, f"{result}_slice")]
    if not index.keeps_axis:
        nodes.append(_squeeze(model, nodes[-1].output[0], axis, f"{result}_squeezed"))
        order = [each - (each > axis) for each in order if each != axis]
    if order:
        nodes.append(_node("Transpose", [nodes[-1].output[0]], result, perm=order))
    nodes[-1].name, nodes[-1].output[0] = gather.name or result, result
    return nodes


def _squeeze(model: ModelProto, value: str, axis: int, result: str) -> NodeProto:
    """Drop an axis of extent 1."""
    if opset_of(model) < AXES_AS_INPUT:
        return _node("Squeeze", [value], result, axes=[axis])
    return _node("Squeeze", [value, _number(model, f"{result}_axis", axis)], result)


def _node(operator: str, inputs: list[str], result: str, **attributes: Any) -> NodeProto:
    return helper.make_node(operator, inputs, [result], name=result, **attributes)


def _number(model: ModelProto, name: str, number: int) -> str:
    """Add a constant of one integer."""
    return _array(model, name, np.array([number]))


def _array(model: ModelProto, name: str, array: np.ndarray) -> str:
    """Add a constant of integers."""
    model.graph.initializer.append(numpy_helper.from_array(array.astype(np.int64), name))
    return name

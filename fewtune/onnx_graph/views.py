"""Moves reshapes, transposes and slices out of the way of fusion; joins products of slices.

A product over the last axis of a tensor of rank 3 or 4 is exported, or written by onnxslim, as a
matrix product between two reshapes. TVM fuses nothing into a product across a reshape, so an
activation would become a kernel of its own. Elementwise operators give the same values in any
shape, so they move before the reshape.

If layer norms stand between convolutions, residuals are summed between transposes to and from
channels last. The layout conversion cannot follow those, so the sum moves before the transpose.

Attention is exported with one product for queries, keys and values. Its result is reshaped,
transposed, and taken apart by three gathers with a constant index. A gather reads its index from
memory: TVM fuses nothing with it, and no rule here schedules it. A slice is fused with its
readers. If it comes before the transpose, the whole transposed tensor is never written.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from onnx import ModelProto, NodeProto

from fewtune.onnx_graph.graph import STANDARD, attributes_of, live_nodes, set_nodes
from fewtune.onnx_graph.operators.builder import Deferring, GraphBuilder

_PRODUCTS = frozenset({"Gemm", "MatMul"})
UNARY = frozenset(
    {"Abs", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "LeakyRelu", "Log", "Mish"}
    | {"Neg", "Relu", "Selu", "Sigmoid", "Softplus", "Sqrt", "Tanh"}
)
BINARY = frozenset({"Add", "Div", "Max", "Min", "Mul", "Pow", "Sub"})


class _View(NamedTuple):
    """A tensor as the reshaped or transposed form of another, which is not written yet."""

    data: str
    node: NodeProto


def move_views(model: ModelProto) -> ModelProto:
    """Move elementwise operators before reshapes and transposes, and slice before transposes.

    Parameters
    ----------
    model : ModelProto
        Of operator set 11 or later, with inferred shapes and without nested graphs.
    """
    return _Mover(model).rewritten()


class _Mover(Deferring):
    """One pass in which views wait until an operator needs them written."""

    def __init__(self, model: ModelProto) -> None:
        super().__init__(model)
        self._views: dict[str, _View] = {}
        self._written: set[str] = set()
        # Values that a dropped reshape would copy.
        self._same: dict[str, str] = {}
        self._of_products = {
            name for node in self._nodes if node.op_type in _PRODUCTS for name in node.output
        }

    def write(self, name: str) -> None:
        """Add the node of a view, unless the graph has it."""
        view = self._views.get(name)
        if view is None or name in self._written:
            return
        inputs = [view.data, *view.node.input[1:]]
        self.graph.op(view.node.op_type, inputs, name, **attributes_of(view.node))
        self._written.add(name)
        if view.node.op_type == "Reshape":
            # A sum moves before a transpose that has to stay; nothing before such a reshape.
            del self._views[name]

    def takes(self, node: NodeProto) -> bool:
        """Defer a view, or apply an operator to the data of its views."""
        node.input[:] = [self._same.get(name, name) for name in node.input]
        if node.domain not in STANDARD:
            return False
        if node.op_type == "Transpose" and node.attribute and node.output[0] not in self._outputs:
            self.write(node.input[0])
            self._views[node.output[0]] = _View(node.input[0], node)
            return True
        if node.op_type == "Reshape":
            return self._reshapes(node)
        if node.op_type == "Gather":
            return self._slices(node)
        if node.op_type in UNARY | BINARY:
            return self._computes_before_reshape(node) or self._sums_before_transpose(node)
        return False

    def _reshapes(self, node: NodeProto) -> bool:
        """Defer the reshape of a product, or drop one that restores a deferred one's shape."""
        data, result = node.input[0], node.output[0]
        view, shape = self._views.get(data), self.graph.shape(result)
        is_second = view is not None and view.node.op_type == "Reshape"
        if is_second and result not in self._outputs and self.graph.shape(view.data) == shape:
            self._same[result] = view.data
            return True
        if data not in self._of_products or self.graph.shape(data) is None:
            return False
        if not self._may_wait(result):
            return False
        self._views[result] = _View(data, node)
        return True

    def _may_wait(self, name: str) -> bool:
        """Whether a reshaped value is only read by operators that take any shape, and reshapes."""
        readers = self.readers.get(name, [])
        shape = self.graph.shape(name)
        if not readers or name in self._outputs or shape is None:
            return False
        return all(self._takes_any_shape(node, shape) for node in readers)

    def _takes_any_shape(self, node: NodeProto, shape: list[int]) -> bool:
        if node.op_type == "Reshape":
            return True
        is_elementwise = node.op_type in UNARY | BINARY and node.domain in STANDARD
        shapes = [self.graph.shape(name) for name in [*node.input, node.output[0]]]
        return is_elementwise and all(each in (shape, []) for each in shapes)

    def _computes_before_reshape(self, node: NodeProto) -> bool:
        """Apply an operator to reshaped values, and to numbers, before the reshape."""
        graph, result = self.graph, node.output[0]
        views = {name: self._views[name] for name in node.input if name in self._views}
        shapes = [graph.shape(view.data) for view in views.values()]
        if not views or any(view.node.op_type != "Reshape" for view in views.values()):
            return False
        if any(shape != shapes[0] for shape in shapes):
            return False
        if any(graph.shape(name) != [] for name in node.input if name not in views):
            return False
        inputs = [views[name].data if name in views else name for name in node.input]
        before = f"{result}_before_reshape"
        graph.op(node.op_type, inputs, before, **attributes_of(node))
        self._views[result] = _View(before, next(iter(views.values())).node)
        if not self._may_wait(result):
            self.write(result)
        return True

    def _sums_before_transpose(self, node: NodeProto) -> bool:
        """Apply a binary operator to what two equal transposes read, unless both have to stay."""
        graph, result = self.graph, node.output[0]
        both = [self._views[name] for name in node.input if name in self._views]
        if node.op_type not in BINARY or len(both) < 2:
            return False
        orders = [attributes_of(view.node).get("perm") for view in both]
        shapes = [graph.shape(view.data) for view in both]
        if orders[0] is None or orders[0] != orders[1] or shapes[0] != shapes[1]:
            return False
        if shapes[0] is None or all(len(self.readers.get(n, [])) > 1 for n in node.input):
            return False
        before = f"{result}_before_transpose"
        graph.op(node.op_type, [view.data for view in both], before, **attributes_of(node))
        self._views[result] = _View(before, both[0].node)
        return True

    def _slices(self, node: NodeProto) -> bool:
        """Write a gather of one constant index as a slice, before a transpose if it has one."""
        graph, (data, index), result = self.graph, node.input, node.output[0]
        view, shape, place = self._views.get(data), graph.shape(data), graph.value(index)
        axis = attributes_of(node).get("axis", 0)
        if shape is None or place is None or place.size != 1 or place.ndim > 1:
            return False
        axis, position = axis % len(shape), int(place.reshape(()))
        if not -shape[axis] <= position < shape[axis]:
            return False
        position %= shape[axis]
        order: list[int] = []
        # A transpose with other readers has to stay, so nothing is gained before it.
        gathered = all(reader.op_type == "Gather" for reader in self.readers[data])
        if view is not None and view.node.op_type == "Transpose" and gathered:
            order = list(attributes_of(view.node)["perm"])
            data, axis = view.data, order[axis]
        else:
            self.write(data)
        last = None if order else result
        keeps_axis = bool(place.ndim)
        part = graph.slice(data, axis, position, position + 1, last if keeps_axis else None)
        if not keeps_axis:
            part = graph.squeeze(part, axis, last)
            order = [each - (each > axis) for each in order if each != axis]
        if order:
            graph.transpose(part, order, result)
        return True


# Axes of the tensors whose slices are multiplied, and inputs of a Slice with one axis.
_AXES, _SLICE_INPUTS = 3, 4


class _Part(NamedTuple):
    """A product whose rows are the slice of a tensor at one index of an axis."""

    node: NodeProto
    data: str
    axis: int
    position: int


def join_slice_products(model: ModelProto) -> ModelProto:
    """Join products of slices, if their joint product multiplies fewer than twice as many rows.

    A recurrent layer that an exporter unrolled multiplies each step's input by the same weights,
    and so reads them at every step. One product of all steps reads them once. Each step's result is
    gathered from it: the index is an argument of the gather's kernel, so one kernel serves all
    steps, with whatever is fused into it.

    Parameters
    ----------
    model : ModelProto
        With inferred shapes and without nested graphs.
    """
    graph = GraphBuilder(model, {})
    constants = {tensor.name for tensor in model.graph.initializer}
    producers = {name: node for node in model.graph.node for name in node.output}
    groups: dict[tuple[Any, ...], list[_Part]] = {}
    for node in model.graph.node:
        part = _part_of(graph, node, constants, producers)
        if part is not None:
            attributes = sorted(each.SerializeToString() for each in node.attribute)
            key = (part.data, part.axis, node.op_type, *node.input[1:], *attributes)
            groups.setdefault(key, []).append(part)
    joined: dict[str, tuple[_Part, _Part]] = {}
    for group in groups.values():
        extent = graph.shape(group[0].data)[group[0].axis]
        if len(group) > 1 and 2 * len(group) > extent:
            joined |= {part.node.output[0]: (part, group[0]) for part in group}
    if not joined:
        return model
    for node in model.graph.node:
        found = joined.get(node.output[0])
        if found is None:
            graph.add(node, {})
        else:
            _gather(graph, *found)
    result = graph.model()
    set_nodes(result, live_nodes(result))
    return result


def _part_of(
    graph: GraphBuilder, node: NodeProto, constants: set[str], producers: dict[str, NodeProto]
) -> _Part | None:
    """A product of rows from a tensor of three axes; any bias is the same for each row."""
    if node.op_type not in ("Gemm", "MatMul") or attributes_of(node).get("transA"):
        return None
    ranks = [len(graph.shape(name) or ()) for name in node.input[1:]]
    if not constants.issuperset(node.input[1:]) or ranks not in ([2], [2, 1]):
        return None
    squeeze = producers.get(node.input[0])
    part = producers.get(squeeze.input[0]) if squeeze and squeeze.op_type == "Squeeze" else None
    if part is None or part.op_type != "Slice" or len(part.input) != _SLICE_INPUTS:
        return None
    shape = graph.shape(part.input[0])
    bounds = [graph.value(name) for name in part.input[1:]]
    if shape is None or len(shape) != _AXES or any(b is None or b.size != 1 for b in bounds):
        return None
    begin, end, axis = (int(each.reshape(())) for each in bounds)
    rows = [extent for each, extent in enumerate(shape) if each != axis]
    if begin < 0 or end != begin + 1 or axis not in (0, 1):
        return None
    return _Part(node, part.input[0], axis, begin) if graph.shape(node.input[0]) == rows else None


def _gather(graph: GraphBuilder, part: _Part, first: _Part) -> None:
    """Gather a product's rows from the joint one, which is written before the first of them."""
    *leading, depth = graph.shape(part.data)
    joint = f"{first.node.output[0]}_all"
    if part is first:
        rows = graph.reshape(part.data, [leading[0] * leading[1], depth])
        inputs = [rows, *part.node.input[1:]]
        graph.op(part.node.op_type, inputs, joint, **attributes_of(part.node))
    places = np.arange(leading[0] * leading[1]).reshape(leading).take(part.position, part.axis)
    inputs = [joint, graph.constant(places, np.int64)]
    graph.op("Gather", inputs, part.node.output[0], axis=0)

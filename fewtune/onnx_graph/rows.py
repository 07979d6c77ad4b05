"""Convolutions of rows, and what stands between them, become those of planes of one row.

TVM has no design space, no rule and no prediction for convolutions of one axis; all of them apply
to a plane of height one. A U-Net of such convolutions took 41 ms in place of 96 (an EPYC, two
threads). A row is made into a plane once where a chain begins, and back where it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto

from fewtune.onnx_graph.graph import STANDARD, attributes_of, optional
from fewtune.onnx_graph.operators.builder import Deferring, GraphBuilder
from fewtune.onnx_graph.views import BINARY, UNARY

# Axes of a row, of a plane, and the plane's axis of one.
_ROW, _PLANE, _AXIS = 3, 4, 2
# Attributes by axis in space, with their values on the added axis.
_BY_AXIS = {"kernel_shape": 1, "strides": 1, "dilations": 1, "output_padding": 0}
_NARY = BINARY | {"Mean", "PRelu", "Sum"}
# Operators whose further inputs are numbers, or vectors over channels.
_FIRST_ONLY = (
    UNARY
    | {"BatchNormalization", "Cast", "Clip", "DequantizeLinear", "Dropout", "Identity"}
    | {"InstanceNormalization", "QuantizeLinear"}
)
_POOLS = frozenset({"AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool"})
# Operators that may make planes of rows, or rows of planes.
_VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze"})
# The place of the weights among the inputs.
_WEIGHTS = {"Conv": 1, "ConvInteger": 1, "ConvTranspose": 1, "QLinearConv": 3}


def planes_of_rows(model: ModelProto) -> ModelProto:
    """Write convolutions of rows as convolutions of planes.

    Parameters
    ----------
    model : ModelProto
        With inferred shapes and without nested graphs. One without such convolutions is left as it
        is.
    """
    lifter = _Lifter(model)
    has_rows = any(_is_of_row(lifter.graph, node) for node in model.graph.node)
    return lifter.rewritten() if has_rows else model


def _is_of_row(graph: GraphBuilder, node: NodeProto) -> bool:
    """Whether a node is a convolution of a row of known shape."""
    if node.op_type not in _WEIGHTS or node.domain not in STANDARD:
        return False
    shapes = graph.shape(node.input[0]), graph.shape(node.input[_WEIGHTS[node.op_type]])
    return all(shape is not None and len(shape) == _ROW for shape in shapes)


class _Lifter(Deferring):
    """One pass in which rows wait, as planes, until an operator needs them as rows."""

    def __init__(self, model: ModelProto) -> None:
        super().__init__(model)
        # Planes by the row's name; those that an operator computed, and have no row yet.
        self._planes: dict[str, str] = {}
        self._computed: set[str] = set()
        self._waiting: set[str] = set()
        self._producers = {name: node for node in self._nodes for name in node.output}

    def write(self, name: str) -> None:
        """Add the row of a plane."""
        if name in self._waiting:
            self.graph.squeeze(self._planes[name], _AXIS, name)
            self._waiting.discard(name)

    def takes(self, node: NodeProto) -> bool:
        """Compute planes of a node's results; False if it has to compute rows."""
        if node.domain not in STANDARD:
            return False
        if _is_of_row(self.graph, node):
            return self._convolves(node)
        if node.op_type in _VIEWS:
            return self._views(node)
        first = node.input[0] if node.input else ""
        if node.op_type in _NARY:
            is_lifted = any(name in self._computed for name in node.input)
            return is_lifted and self._computes(node, list(map(self._operand, node.input)))
        if first not in self._computed:
            return False
        if node.op_type in _FIRST_ONLY or node.op_type in _POOLS:
            changed = self._spread(attributes_of(node)) if node.op_type in _POOLS else {}
            return self._computes(node, [self._planes[first], *node.input[1:]], **changed)
        rewritten = _OTHERS.get(node.op_type)
        return rewritten is not None and rewritten(self, node)

    def _views(self, node: NodeProto) -> bool:
        """Take planes that the model itself makes of rows, and the other way round."""
        (data, *_), (result,) = node.input, node.output
        before, after = self.graph.shape(data), self.graph.shape(result)
        if before is None or after is None:
            return False
        if data in self._computed and after == _as_plane(before):
            self.graph.op("Identity", [self._planes[data]], result)
            return True
        if len(after) == _ROW and before == _as_plane(after):
            self._planes[result] = data
            self._computed.add(result)
            self._waiting.add(result)
            return True
        return False

    def _convolves(self, node: NodeProto) -> bool:
        place, inputs = _WEIGHTS[node.op_type], list(node.input)
        inputs[0] = self._plane(inputs[0])
        inputs[place] = self._weights(inputs[place])
        return self._computes(node, inputs, **self._spread(attributes_of(node)))

    def _weights(self, name: str) -> str:
        """Weights with the axis; those in bytes keep their scales."""
        graph, producer = self.graph, self._producers.get(name)
        if producer is not None and producer.op_type == "DequantizeLinear":
            inputs = [self._weights(producer.input[0]), *producer.input[1:]]
            return graph.op(producer.op_type, inputs, **attributes_of(producer))
        value = graph.value(name)
        if value is None:
            return self._plane(name)
        return graph.constant(np.expand_dims(value, _AXIS), hint=f"{name}_plane")

    def _plane(self, name: str) -> str:
        """A row as a plane."""
        if name not in self._planes:
            self._planes[name] = self.graph.unsqueeze(name, _AXIS)
        return self._planes[name]

    def _operand(self, name: str) -> str | None:
        """An operand of an elementwise operator; None if its shape is not known."""
        graph = self.graph
        shape, value = graph.shape(name), graph.value(name)
        if shape is None or len(shape) > _ROW:
            return None
        if name in self._planes or (len(shape) == _ROW and value is None):
            return self._plane(name)
        if not shape:
            return name
        # Beside four axes, a constant of fewer hinders the conversion of layouts.
        whole = _as_plane([1] * (_ROW - len(shape)) + shape)
        return graph.reshape(name, whole) if value is None else graph.constant(value.reshape(whole))

    def _spread(self, given: dict[str, Any]) -> dict[str, Any]:
        """Attributes of a convolution or pool with the added axis."""
        changed = {
            name: [value, *given[name]] for name, value in _BY_AXIS.items() if given.get(name)
        }
        if given.get("pads"):
            first, last = given["pads"]
            changed["pads"] = [0, first, 0, last]
        return changed

    def _computes(self, node: NodeProto, inputs: Sequence[str | None], **changed: object) -> bool:
        """Add a node that computes planes of its outputs."""
        shapes = [self.graph.shape(name) for name in node.output if name]
        given = [each for each in inputs if each is not None]
        if len(given) < len(inputs) or any(s is None or len(s) != _ROW for s in shapes):
            return False
        planes = [name and self.graph.fresh(f"{name}_plane") for name in node.output]
        self.graph.ops(node.op_type, given, planes, **{**attributes_of(node), **changed})
        for row, plane in zip(node.output, planes, strict=True):
            if row:
                self._planes[row] = plane
                self._computed.add(row)
                self._waiting.add(row)
        return True

    def _joins(self, node: NodeProto) -> bool:
        """Concat and Split, along an axis."""
        axis = attributes_of(node).get("axis", 0) % _ROW
        further = [] if node.op_type == "Concat" else list(node.input[1:])
        rows = node.input[: len(node.input) - len(further)]
        return self._computes(node, [*map(self._operand, rows), *further], axis=_moved(axis))

    def _slices(self, node: NodeProto) -> bool:
        graph, (data, begin, end, axes, steps) = self.graph, optional(node.input, 5)
        counted = graph.value(axes) if axes else np.arange(_ROW)
        if not begin or counted is None:
            return False
        places = [_moved(int(axis) % _ROW) for axis in counted]
        inputs = [self._planes[data], begin, end, graph.constant(places, np.int64)]
        return self._computes(node, [*inputs, *filter(None, [steps])])

    def _pads(self, node: NodeProto) -> bool:
        graph, (data, pads, value, axes) = self.graph, optional(node.input, 4)
        widths = graph.value(pads) if pads else None
        if widths is None or widths.size != 2 * _ROW or axes:
            return False
        spread = graph.constant(np.insert(widths, [_AXIS, _ROW + _AXIS], 0), np.int64)
        return self._computes(node, [self._planes[data], spread, *filter(None, [value])])


def _as_plane(shape: list[int]) -> list[int]:
    """A row's shape, as a plane."""
    return [*shape[:_AXIS], 1, *shape[_AXIS:]]


def _moved(axis: int) -> int:
    """A row's axis in the plane."""
    return axis + (axis >= _AXIS)


_OTHERS: dict[str, Callable[[_Lifter, NodeProto], bool]] = {
    "Concat": _Lifter._joins,
    "Pad": _Lifter._pads,
    "Slice": _Lifter._slices,
    "Split": _Lifter._joins,
}

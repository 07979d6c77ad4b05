"""A builder of ONNX graphs that knows the types of values and the values of small constants."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from onnx import ModelProto, NodeProto, ValueInfoProto, helper

from fewtune.onnx_graph.graph import (
    AXES_AS_INPUT,
    STANDARD,
    names_read,
    static_shape,
)
from fewtune.onnx_graph.operators.known_values import FOLDED_ELEMENTS, KnownValues
from fewtune.onnx_graph.operators.refused import refusal

MICROSOFT = "com.microsoft"
_REDUCTION_AXES_AS_INPUT = 18
# TVM's kernel of a concatenation tests for each element which part it belongs to.
_JOINED_AT_ONCE = 16

# Their results repeat elements of what they read: stored, they would take memory for nothing.
_REPEATING = frozenset({"Expand", "Tile"})

Scope = dict[str, str]
"""Names in a nested graph, to names in the graph under construction."""

Handler = Callable[["GraphBuilder", NodeProto, Scope], bool]


class GraphBuilder(KnownValues):
    """Rebuilds a model's nodes, and expands some of them.

    Parameters
    ----------
    model : ModelProto
        With static input shapes; it is left as it is.
    handlers : dict
        By domain and operator, a function that expands a node. Its arguments are the builder, the
        node, and the scope of its nested graphs; it returns whether it expanded the node.
    most : int
        Most elements of a folded constant.

    Attributes
    ----------
    opset : int
        Version of ONNX's own operator set.
    refusals : list of str
        Reasons why nodes could not be expanded.
    """

    def __init__(
        self,
        model: ModelProto,
        handlers: dict[tuple[str, str], Handler],
        most: int = FOLDED_ELEMENTS,
    ) -> None:
        super().__init__(model)
        self._model = model
        self._handlers, self._most = handlers, most
        self.refusals: list[str] = []
        self._nodes: list[NodeProto] = []

    @property
    def node_count(self) -> int:
        """Number of nodes so far."""
        return len(self._nodes)

    def forget(self, count: int) -> None:
        """Remove all nodes but the first ``count``."""
        del self._nodes[count:]

    def op(
        self,
        operator: str,
        inputs: Sequence[str],
        output: str | None = None,
        **attributes: object,
    ) -> str:
        """Add a node of one output, and return that output's name.

        Parameters
        ----------
        operator : str
            An operator of ONNX's default domain.
        inputs : sequence of str
        output : str, optional
            Name of the output; a fresh one by default.
        attributes
            Those that are None are left out.
        """
        return self.ops(
            operator, inputs, [output or self.fresh(f"{operator.lower()}_")], **attributes
        )[0]

    def ops(
        self, operator: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: object
    ) -> list[str]:
        """Add a node of several outputs with these names."""
        self._names.update(outputs)
        self.add(_node(operator, inputs, outputs, attributes), {})
        return list(outputs)

    def fold(self, operator: str, inputs: Sequence[str], **attributes: object) -> str:
        """As `op`, but folded if the inputs are constants of any size: for weights."""
        output = self.fresh(f"{operator.lower()}_")
        node = _node(operator, inputs, [output], attributes)
        if not self.compute(node, most=None):
            self.add(node, {})
        return output

    def refuse(self, node: NodeProto, reason: str) -> bool:
        """Record why a node cannot be expanded; returns False."""
        self.refusals.append(refusal(node, reason))
        return False

    def add(self, node: NodeProto, scope: Scope) -> None:
        """Add a node: expanded, folded, or as it is.

        Parameters
        ----------
        node : NodeProto
            Its inputs and outputs are names of this graph.
        scope : dict
            Names that its nested graphs see.
        """
        domain = "" if node.domain in STANDARD else node.domain
        handler = self._handlers.get((domain, node.op_type))
        if handler is not None and handler(self, node, scope):
            return
        most = FOLDED_ELEMENTS if node.op_type in _REPEATING else self._most
        if domain == "" and self.compute(node, most):
            return
        self._nodes.append(node)
        if domain == "":
            self.infer(node)

    # Operators whose form depends on the operator set

    def reshape(self, data: str, shape: Sequence[int], output: str | None = None) -> str:
        """Reshape to a known shape."""
        if output is None and self.shape(data) == list(shape):
            return data
        return self.op("Reshape", [data, self.constant(shape, np.int64)], output)

    def transpose(self, data: str, order: Sequence[int], output: str | None = None) -> str:
        """Reorder axes."""
        return self.op("Transpose", [data], output, perm=list(order))

    def cast(self, data: str, element_type: int, output: str | None = None) -> str:
        """Convert elements to another ONNX type."""
        if output is None and self.element_type(data) == element_type:
            return data
        return self.op("Cast", [data], output, to=element_type)

    def unsqueeze(self, data: str, axis: int, output: str | None = None) -> str:
        """Add an axis of one."""
        if self.opset < AXES_AS_INPUT:
            return self.op("Unsqueeze", [data], output, axes=[axis])
        return self.op("Unsqueeze", [data, self.constant([axis], np.int64)], output)

    def squeeze(self, data: str, axis: int, output: str | None = None) -> str:
        """Drop an axis of one."""
        if self.opset < AXES_AS_INPUT:
            return self.op("Squeeze", [data], output, axes=[axis])
        return self.op("Squeeze", [data, self.constant([axis], np.int64)], output)

    def slice(self, data: str, axis: int, begin: int, end: int, output: str | None = None) -> str:
        """Take the elements from ``begin`` to before ``end`` of an axis."""
        if self.opset < 10:
            return self.op("Slice", [data], output, axes=[axis], starts=[begin], ends=[end])
        bounds = [self.constant([each], np.int64) for each in (begin, end, axis)]
        return self.op("Slice", [data, *bounds], output)

    def fold_slice(self, data: str, axis: int, begin: int, end: int) -> str:
        """As `slice`, but folded if the data are constant: for weights."""
        if self.opset < 10:
            return self.fold("Slice", [data], axes=[axis], starts=[begin], ends=[end])
        bounds = [self.constant([each], np.int64) for each in (begin, end, axis)]
        return self.fold("Slice", [data, *bounds])

    def clip(self, data: str, least: float | None, most: float | None) -> str:
        """Clip the elements of a value; None is no bound."""
        if self.opset < 11:
            return self.op("Clip", [data], min=least, max=most)
        bounds = [
            "" if each is None else self.constant(each, self.dtype(data)) for each in (least, most)
        ]
        return self.op("Clip", [data, *bounds])

    def reduce(
        self,
        operator: str,
        data: str,
        axes: Sequence[int] | None,
        keepdims: int = 1,
        output: str | None = None,
    ) -> str:
        """Reduce over axes; None reduces over all."""
        first = AXES_AS_INPUT if operator == "ReduceSum" else _REDUCTION_AXES_AS_INPUT
        if axes is None or self.opset < first:
            return self.op(operator, [data], output, axes=axes and list(axes), keepdims=keepdims)
        inputs = [data, self.constant(list(axes), np.int64)]
        return self.op(operator, inputs, output, keepdims=keepdims)

    def concat(self, parts: Sequence[str], axis: int, output: str | None = None) -> str:
        """Concatenate along an axis; many parts in groups."""
        parts = list(parts)
        while len(parts) > _JOINED_AT_ONCE:
            groups = [parts[i : i + _JOINED_AT_ONCE] for i in range(0, len(parts), _JOINED_AT_ONCE)]
            parts = [
                self.op("Concat", group, axis=axis) if len(group) > 1 else group[0]
                for group in groups
            ]
        if len(parts) == 1:
            return self.op("Identity", parts, output) if output is not None else parts[0]
        return self.op("Concat", parts, output, axis=axis)

    # The result

    def model(self) -> ModelProto:
        """The rebuilt model, with the constants that its nodes read."""
        graph = self._model.graph
        for value in graph.output:
            if value.name in self._tensors and value.name not in self._given:
                # A folded output of the model still needs a node that writes it.
                name = self.fresh(f"{value.name}_constant")
                self._set_constant(name, self.value(value.name))
                self._nodes.append(helper.make_node("Identity", [name], [value.name]))
        read = {value.name for value in graph.output}
        read |= {name for node in self._nodes for name in names_read(node)}
        made = {name for node in self._nodes for name in node.output}
        result = ModelProto(ir_version=self._model.ir_version)
        result.opset_import.extend(self._model.opset_import)
        result.functions.extend(self._model.functions)
        result.metadata_props.extend(self._model.metadata_props)
        result.graph.name = graph.name
        result.graph.input.extend(graph.input)
        result.graph.output.extend(graph.output)
        for value in result.graph.output:
            if static_shape(value) is None and self.shape(value.name) is not None:
                value.type.CopyFrom(self._types[value.name])
        result.graph.node.extend(self._nodes)
        result.graph.initializer.extend(
            tensor for name, tensor in self._tensors.items() if name in read and name not in made
        )
        outputs = {value.name for value in graph.output}
        result.graph.value_info.extend(
            ValueInfoProto(name=name, type=self._types[name])
            for name in made - outputs
            if self.shape(name) is not None
        )
        return result


def _node(
    operator: str, inputs: Sequence[str], outputs: Sequence[str], attributes: dict[str, object]
) -> NodeProto:
    node = helper.make_node(operator, list(inputs), list(outputs), name=outputs[0])
    for name, each in attributes.items():
        if each is not None:
            node.attribute.append(helper.make_attribute(name, each))
    return node

"""A builder of ONNX graphs that knows the types of values and the values of small constants."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from fewtune.onnx_graph.external_data import array_of
from fewtune.onnx_graph.graph import (
    AXES_AS_INPUT,
    RANDOM,
    STANDARD,
    element_count,
    node_text,
    operator_name,
    opset_of,
    reads,
    static_shape,
    static_sizes,
)

MICROSOFT = "com.microsoft"
_REDUCTION_AXES_AS_INPUT = 18
# Values up to this size are folded while the graph is built: shapes, counters, conditions.
FOLDED_ELEMENTS = 1024
# Dequantized weights are kept as integers (`fewtune.onnx_graph.quantized`).
_KEPT = RANDOM | {"DequantizeLinear", "QuantizeLinear"}
# TVM's kernel of a concatenation tests for each element which part it belongs to.
_JOINED_AT_ONCE = 16

# Their results repeat elements of what they read: stored, they would take memory for nothing.
_REPEATING = frozenset({"Expand", "Tile"})

_SERVED = "run this model with onnxruntime, or end it before that node"

Scope = dict[str, str]
"""Names in a nested graph, to names in the graph under construction."""

Handler = Callable[["GraphBuilder", NodeProto, Scope], bool]


def refusal(node: NodeProto, reason: str) -> str:
    """The sentence that refuses a node; a reason without advice is followed by what serves it."""
    advice = "" if ": " in reason else f": {_SERVED}"
    return f"{node_text(node)} {reason}{advice}"


class GraphBuilder:
    """Rebuilds a model's nodes, and expands some of them.

    Parameters
    ----------
    model : ModelProto
        With static input shapes; it is left as it is.
    handlers : dict
        By operator (`operator_name`), a function that expands a node. Its arguments are the
        builder, the node, and the scope of its nested graphs; it returns whether it expanded the
        node.
    most : int
        Most elements of a folded constant.

    Attributes
    ----------
    opset : int
        Version of ONNX's own operator set.
    refusals : list of str
        Reasons why nodes could not be expanded.
    nodes : list of NodeProto
        Those written so far.
    """

    def __init__(
        self,
        model: ModelProto,
        handlers: dict[str, Handler],
        most: int = FOLDED_ELEMENTS,
    ) -> None:
        self.opset = opset_of(model)
        self._types: dict[str, TypeProto] = {}
        self._tensors = {tensor.name: tensor for tensor in model.graph.initializer}
        self._given = set(self._tensors)
        self._values: dict[str, np.ndarray] = {}
        self._by_content: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._counts: dict[str, int] = {}
        self._names = set(self._tensors)
        for name, tensor in self._tensors.items():
            self._types[name] = helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
        graph = model.graph
        for value in [*graph.value_info, *graph.input, *graph.output]:
            self._names.add(value.name)
            if value.name not in self._tensors:
                self._types[value.name] = value.type
        for node in graph.node:
            self._names.update(node.output)
        self._model = model
        self._handlers, self._most = handlers, most
        self.refusals: list[str] = []
        self.nodes: list[NodeProto] = []

    def shape(self, name: str) -> list[int] | None:
        """Static shape of a value; None if it is not known."""
        return static_sizes(self._types[name]) if name in self._types else None

    def element_type(self, name: str) -> int:
        """ONNX element type of a value; 0 if it is not known."""
        kind = self._types.get(name)
        return kind.tensor_type.elem_type if kind is not None else 0

    def dtype(self, name: str) -> np.dtype:
        """NumPy's type of a value's elements; float32 if it is not known."""
        return helper.tensor_dtype_to_np_dtype(self.element_type(name) or TensorProto.FLOAT)

    def value(self, name: str) -> np.ndarray | None:
        """A constant's value; None if the value is not constant."""
        if name not in self._values and name in self._tensors:
            self._values[name] = array_of(self._tensors[name])
        return self._values.get(name)

    def fresh(self, hint: str) -> str:
        """A name that no value has yet."""
        name, count = hint, self._counts.get(hint, 0)
        while name in self._names:
            count += 1
            name = f"{hint}_{count}"
        self._names.add(name)
        # A loop that is written out asks for thousands of one hint; names are never given back.
        self._counts[hint] = count
        return name

    def constant(self, value: object, dtype: object = None, hint: str = "constant") -> str:
        """Name of an initialiser with this value; equal values share one."""
        array = np.asarray(value, dtype)
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self._by_content:
            name = self.fresh(hint)
            self._set_constant(name, array)
            self._by_content[key] = name
        return self._by_content[key]

    def _set_constant(self, name: str, array: np.ndarray) -> None:
        # NumPy returns scalars where an array of rank 0 is meant.
        array = np.asarray(array)
        self._values[name] = array
        self._tensors[name] = numpy_helper.from_array(array, name)
        self._types[name] = helper.make_tensor_type_proto(
            self._tensors[name].data_type, list(array.shape)
        )
        self._names.add(name)

    def compute(self, node: NodeProto, most: int | None = FOLDED_ELEMENTS) -> bool:
        """Fold a node, if all its inputs are constants.

        Parameters
        ----------
        node : NodeProto
        most : int or None
            Most elements of a constant that is read or written; None for any. Of the model's own
            constants, those of more than `FOLDED_ELEMENTS` are only read if it is None.

        Returns
        -------
        is_folded : bool
            Whether the outputs are known constants now.
        """
        if node.op_type in ("Shape", "Size"):
            shape = self.shape(node.input[0])
            if shape is None:
                return False
            bounds = {a.name: a.i for a in node.attribute}
            part = shape[bounds.get("start", 0) : bounds.get("end", len(shape))]
            found = part if node.op_type == "Shape" else math.prod(shape)
            self._set_constant(node.output[0], np.array(found, np.int64))
            return True
        if node.op_type in _KEPT or any(a.HasField("g") for a in node.attribute):
            return False
        given = {name: self._small(name, most) for name in node.input if name}
        outputs = [name for name in node.output if name]
        if any(array is None for array in given.values()):
            return False
        try:
            opsets = [helper.make_opsetid("", self.opset)]
            single = helper.make_function("", "one", [*given], outputs, [node], opsets)
            results = ReferenceEvaluator(single).run(None, given, attributes={})
        except Exception:  # noqa: BLE001 (what cannot be computed stays in the graph)
            return False
        if not all(isinstance(result, np.ndarray | np.generic) for result in results):
            return False
        arrays = [np.asarray(result) for result in results]
        is_large = most is not None and any(array.size > most for array in arrays)
        if is_large or any(array.dtype.kind not in "biuf" for array in arrays):
            return False
        for name, array in zip(outputs, arrays, strict=True):
            self._set_constant(name, array)
        return True

    def _small(self, name: str, most: int | None = FOLDED_ELEMENTS) -> np.ndarray | None:
        tensor = self._tensors.get(name)
        if most is not None and name in self._given:
            most = FOLDED_ELEMENTS
        if tensor is None or (most is not None and element_count(tensor) > most):
            return None
        return self.value(name)

    def declare(self, name: str, element_type: int, shape: Sequence[int]) -> None:
        """Set a value's type, which ONNX's inference would not find."""
        self._types[name] = helper.make_tensor_type_proto(element_type, list(shape))

    def infer(self, node: NodeProto) -> None:
        """Infer the types of a node's outputs, as far as ONNX's inference knows them."""
        try:
            schema = onnx.defs.get_schema(node.op_type, self.opset, "")
            data = {
                name: self._tensors[name] for name in node.input if self._small(name) is not None
            }
            found = onnx.shape_inference.infer_node_outputs(
                schema,
                node,
                {name: self._types[name] for name in node.input if name},
                data,
                opset_imports=[helper.make_opsetid("", self.opset)],
            )
        except Exception:  # noqa: BLE001 (a C++ pass; what is unknown stays unknown)
            return
        for name, kind in found.items():
            known = self._types.get(name)
            if known is None or self.shape(name) is None:
                self._types[name] = kind

    def op(
        self,
        operator: str,
        inputs: Sequence[Any],
        output: str | None = None,
        **attributes: object,
    ) -> str:
        """Add a node of one output, and return that output's name.

        Parameters
        ----------
        operator : str
            An operator of ONNX's default domain.
        inputs : sequence
            Names; a number or array becomes a constant of the type of the first name.
        output : str, optional
            Name of the output; a fresh one by default.
        attributes
            Those that are None are left out.
        """
        like = next(each for each in inputs if isinstance(each, str))
        names = [
            each if isinstance(each, str) else self.constant(each, self.dtype(like))
            for each in inputs
        ]
        return self.ops(
            operator, names, [output or self.fresh(f"{operator.lower()}_")], **attributes
        )[0]

    def ops(
        self, operator: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: object
    ) -> list[str]:
        """Add a node of several outputs with these names."""
        self._names.update(outputs)
        self.add(helper.make_node(operator, inputs, outputs, outputs[0], **attributes), {})
        return list(outputs)

    def fold(self, operator: str, inputs: Sequence[str], **attributes: object) -> str:
        """As `op`, but folded if the inputs are constants of any size: for weights."""
        output = self.fresh(f"{operator.lower()}_")
        node = helper.make_node(operator, inputs, [output], output, **attributes)
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
        handler = self._handlers.get(operator_name(node))
        if handler is not None and handler(self, node, scope):
            return
        most = FOLDED_ELEMENTS if node.op_type in _REPEATING else self._most
        is_standard = node.domain in STANDARD
        if is_standard and self.compute(node, most):
            return
        self.nodes.append(node)
        if is_standard:
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
        """Convert elements to another ONNX type; those of weights at once."""
        if output is not None:
            return self.op("Cast", [data], output, to=element_type)
        is_same = self.element_type(data) == element_type
        return data if is_same else self.fold("Cast", [data], to=element_type)

    def on_axes(
        self,
        operator: str,
        data: str,
        axes: Sequence[int] | None,
        output: str | None = None,
        first: int = AXES_AS_INPUT,
        **attributes: object,
    ) -> str:
        """Add an operator of axes, which are an input from operator set ``first`` on."""
        if axes is None or self.opset < first:
            return self.op(operator, [data], output, axes=axes and list(axes), **attributes)
        inputs = [data, self.constant(list(axes), np.int64)]
        return self.op(operator, inputs, output, **attributes)

    def unsqueeze(self, data: str, axis: int) -> str:
        """Add an axis of one."""
        return self.on_axes("Unsqueeze", data, [axis])

    def squeeze(self, data: str, axis: int, output: str | None = None) -> str:
        """Drop an axis of one."""
        return self.on_axes("Squeeze", data, [axis], output)

    def slice(self, data: str, axis: int, begin: int, end: int, output: str | None = None) -> str:
        """Take the elements from ``begin`` to before ``end`` of an axis; of weights, at once."""
        inputs = [data, *(self.constant([each], np.int64) for each in (begin, end, axis))]
        return self.fold("Slice", inputs) if output is None else self.op("Slice", inputs, output)

    def clip(self, data: str, least: float | None, most: float | None) -> str:
        """Clip the elements of a value; None is no bound."""
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
        return self.on_axes(operator, data, axes, output, first, keepdims=keepdims)

    def concat(self, parts: Sequence[str], axis: int, output: str | None = None) -> str:
        """Concatenate along an axis; many parts in groups."""
        parts = list(parts)
        while len(parts) > _JOINED_AT_ONCE:
            groups = [parts[i : i + _JOINED_AT_ONCE] for i in range(0, len(parts), _JOINED_AT_ONCE)]
            parts = [self.concat(group, axis) for group in groups]
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
                self.nodes.append(helper.make_node("Identity", [name], [value.name]))
        outputs = {value.name for value in graph.output}
        read = outputs | {name for node in self.nodes for name in reads(node)}
        made = {name for node in self.nodes for name in node.output}
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
        result.graph.node.extend(self.nodes)
        result.graph.initializer.extend(
            tensor for name, tensor in self._tensors.items() if name in read and name not in made
        )
        result.graph.value_info.extend(
            ValueInfoProto(name=name, type=self._types[name])
            for name in made - outputs
            if self.shape(name) is not None
        )
        return result


class Deferring:
    """One pass over a graph, in which values wait until an operator needs them written.

    Attributes
    ----------
    graph : GraphBuilder
        The rewritten graph.
    readers : dict of list
        The nodes that read a value; an empty one stands for the caller, who reads an output.
    """

    def __init__(self, model: ModelProto) -> None:
        self.graph = GraphBuilder(model, {})
        # Copies: their inputs may be renamed.
        self._nodes = [NodeProto.FromString(n.SerializeToString()) for n in model.graph.node]
        self._outputs = [value.name for value in model.graph.output]
        self.readers: dict[str, list[NodeProto]] = {}
        for node in [*self._nodes, NodeProto(input=self._outputs)]:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)

    def rewritten(self) -> ModelProto:
        """Add all nodes."""
        for node in self._nodes:
            if not self.takes(node):
                for name in node.input:
                    self.write(name)
                self.add(node)
        for name in self._outputs:
            self.write(name)
        return self.graph.model()

    def takes(self, node: NodeProto) -> bool:
        """Defer a node's results, or compute them from what waits; False if it needs values."""
        raise NotImplementedError

    def write(self, name: str) -> None:
        """Add the nodes that compute a waiting value, unless the graph has them."""
        raise NotImplementedError

    def add(self, node: NodeProto) -> None:
        """Add a node whose inputs are written."""
        self.graph.add(node, {})

"""A graph under construction: nodes are added one by one, types and small constants are known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import onnx
from onnx import (
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)
from onnx.reference import ReferenceEvaluator

from fewtune.onnx_graph.graph import AXES_AS_INPUT, element_count, opset_of, static_shape

STANDARD = ("", "ai.onnx")
MICROSOFT = "com.microsoft"
# Values up to this size are computed while the graph is built: shapes, counters, conditions.
_FOLDED_ELEMENTS = 1024
_NOT_FOLDED = frozenset({"RandomNormal", "RandomUniform", "Multinomial", "Bernoulli"})
_REDUCTION_AXES_AS_INPUT = 18
# TVM's kernel of a concatenation tests for each element which part it belongs to.
_JOINED_AT_ONCE = 16

Scope = dict[str, str]
"""The names of a nested graph, and what they are called in the graph under construction."""

Handler = Callable[["GraphBuilder", NodeProto, Scope], bool]


class GraphBuilder:
    """Builds a model's nodes anew, knowing the type of each value and the value of small constants.

    Parameters
    ----------
    model : ModelProto
        Static shapes of its inputs; it is left as it is.
    handlers : dict
        By domain and operator, what expands a node: a function of the builder, the node, and the
        scope that its nested graphs see. It returns whether it did.

    Attributes
    ----------
    opset : int
    refusals : list of str
        Why nodes could not be expanded.
    sequences : dict of list of str
        Values that are sequences, with the tensors that they hold.
    """

    def __init__(self, model: ModelProto, handlers: dict[tuple[str, str], Handler]) -> None:
        self.opset = opset_of(model)
        self._model = model
        self._handlers = handlers
        self.refusals: list[str] = []
        self.sequences: dict[str, list[str]] = {}
        self._nodes: list[NodeProto] = []
        self._types: dict[str, TypeProto] = {}
        self._tensors = {tensor.name: tensor for tensor in model.graph.initializer}
        self._values: dict[str, np.ndarray] = {}
        self._by_content: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._given = set(self._tensors)
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

    # What is known

    def shape(self, name: str) -> list[int] | None:
        """Static shape of a value, None where it is not known."""
        kind = self._types.get(name)
        if kind is None or not kind.tensor_type.HasField("shape"):
            return None
        sizes = [d.dim_value if d.HasField("dim_value") else -1 for d in kind.tensor_type.shape.dim]
        return None if min(sizes, default=0) < 0 else sizes

    def element_type(self, name: str) -> int:
        """ONNX element type of a value, 0 where it is not known."""
        kind = self._types.get(name)
        return kind.tensor_type.elem_type if kind is not None else 0

    def dtype(self, name: str) -> np.dtype:
        """Numpy's type of a value's elements; float32 where it is not known."""
        return helper.tensor_dtype_to_np_dtype(self.element_type(name) or TensorProto.FLOAT)

    def value(self, name: str) -> np.ndarray | None:
        """A constant's value, None of what is no constant."""
        if name not in self._values and name in self._tensors:
            self._values[name] = numpy_helper.to_array(self._tensors[name])
        return self._values.get(name)

    # What is added

    def fresh(self, hint: str) -> str:
        """A name that no value has."""
        name, count = hint, 0
        while name in self._names:
            count += 1
            name = f"{hint}_{count}"
        self._names.add(name)
        return name

    def constant(self, value: object, dtype: object = None, hint: str = "constant") -> str:
        """Name of an initialiser of this value, one for all that are equal."""
        array = np.asarray(value, dtype)
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self._by_content:
            name = self.fresh(hint)
            self._set_constant(name, array)
            self._by_content[key] = name
        return self._by_content[key]

    def _set_constant(self, name: str, array: np.ndarray) -> None:
        # Of a scalar, numpy gives no array.
        array = np.asarray(array)
        self._values[name] = array
        self._tensors[name] = numpy_helper.from_array(array, name)
        self._types[name] = helper.make_tensor_type_proto(
            self._tensors[name].data_type, list(array.shape)
        )
        self._names.add(name)

    def nested_tensor(self, tensor: TensorProto) -> str:
        """Name in this graph of a nested graph's initialiser, the same for all its copies."""
        return self.constant(numpy_helper.to_array(tensor), hint=tensor.name)

    @property
    def node_count(self) -> int:
        """Number of nodes so far."""
        return len(self._nodes)

    def op(
        self,
        operator: str,
        inputs: Sequence[str],
        output: str | None = None,
        **attributes: object,
    ) -> str:
        """Add a node of one output, and give that output's name.

        Parameters
        ----------
        operator : str
            Of ONNX's own operators.
        inputs : sequence of str
        output : str, optional
            The name it is to have; a fresh one by default.
        attributes
            Without those that are None.
        """
        return self.ops(
            operator, inputs, [output or self.fresh(f"{operator.lower()}_")], **attributes
        )[0]

    def ops(
        self, operator: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: object
    ) -> list[str]:
        """Add a node of several outputs, whose names are given."""
        self._names.update(outputs)
        self.add(_node(operator, inputs, outputs, attributes), {})
        return list(outputs)

    def fold(self, operator: str, inputs: Sequence[str], **attributes: object) -> str:
        """As `op`; computed now where the inputs are constants, however large: for weights."""
        output = self.fresh(f"{operator.lower()}_")
        node = _node(operator, inputs, [output], attributes)
        if not self._computed(node, most=None):
            self.add(node, {})
        return output

    def refuse(self, node: NodeProto, reason: str) -> bool:
        """Note why a node cannot be expanded; it stays as it is."""
        name = f"node {node.name!r}" if node.name else f"the node of output {node.output[0]!r}"
        domain = f"{node.domain}." if node.domain not in STANDARD else ""
        self.refusals.append(f"{domain}{node.op_type} ({name}) {reason}")
        return False

    def add(self, node: NodeProto, scope: Scope) -> None:
        """Add a node: expanded, computed now, or as it is.

        Parameters
        ----------
        node : NodeProto
            Its inputs and outputs are names of this graph; its nested graphs see ``scope``.
        """
        domain = "" if node.domain in STANDARD else node.domain
        if node.op_type == "Identity" and node.input[0] in self.sequences:
            self.sequences[node.output[0]] = self.sequences[node.input[0]]
            return
        handler = self._handlers.get((domain, node.op_type))
        if handler is not None and handler(self, node, scope):
            return
        if domain == "" and self._computed(node):
            return
        self._nodes.append(node)
        if domain == "":
            self.infer(node)

    def _computed(self, node: NodeProto, most: int | None = _FOLDED_ELEMENTS) -> bool:
        """Whether all of a node's outputs are constants of few elements, which then are known."""
        if node.op_type == "Shape":
            shape = self.shape(node.input[0])
            if shape is None:
                return False
            bounds = {a.name: a.i for a in node.attribute}
            shape = shape[bounds.get("start", 0) : bounds.get("end", len(shape))]
            self._set_constant(node.output[0], np.array(shape, np.int64))
            return True
        if node.op_type == "Size" and self.shape(node.input[0]) is not None:
            size = np.prod(self.shape(node.input[0]), dtype=np.int64)
            self._set_constant(node.output[0], np.array(size, np.int64))
            return True
        if node.op_type in _NOT_FOLDED or any(a.HasField("g") for a in node.attribute):
            return False
        given = {name: self._small(name, most) for name in node.input if name}
        if any(array is None for array in given.values()):
            return False
        try:
            single = helper.make_model(
                helper.make_graph(
                    [node],
                    "one",
                    [],
                    [onnx.ValueInfoProto(name=o) for o in node.output if o],
                    [numpy_helper.from_array(a, n) for n, a in given.items()],
                ),
                opset_imports=[helper.make_opsetid("", self.opset)],
            )
            results = ReferenceEvaluator(single).run(None, {})
        except Exception:  # noqa: BLE001 (what cannot be computed stays in the graph)
            return False
        if not all(isinstance(result, np.ndarray | np.generic) for result in results):
            return False
        arrays = [np.asarray(result) for result in results]
        if most is not None and any(array.size > most for array in arrays):
            return False
        if any(array.dtype.kind not in "biuf" for array in arrays):
            return False
        for name, array in zip((o for o in node.output if o), arrays, strict=True):
            self._set_constant(name, array)
        return True

    def _small(self, name: str, most: int | None = _FOLDED_ELEMENTS) -> np.ndarray | None:
        tensor = self._tensors.get(name)
        if tensor is None or (most is not None and element_count(tensor) > most):
            return None
        return self.value(name)

    def declare(self, name: str, element_type: int, shape: Sequence[int]) -> None:
        """Take down a value's type, where it is known better than ONNX's inference knows it."""
        self._types[name] = helper.make_tensor_type_proto(element_type, list(shape))

    def infer(self, node: NodeProto) -> None:
        """Take down the types of a node's outputs, where ONNX's inference knows them."""
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

    def slice(self, data: str, axis: int, begin: int, end: int, output: str | None = None) -> str:
        """What lies between two places of an axis."""
        if self.opset < 10:
            return self.op("Slice", [data], output, axes=[axis], starts=[begin], ends=[end])
        bounds = [self.constant([each], np.int64) for each in (begin, end, axis)]
        return self.op("Slice", [data, *bounds], output)

    def fold_slice(self, data: str, axis: int, begin: int, end: int) -> str:
        """As `slice`; computed now where the data are constant: for weights."""
        if self.opset < 10:
            return self.fold("Slice", [data], axes=[axis], starts=[begin], ends=[end])
        bounds = [self.constant([each], np.int64) for each in (begin, end, axis)]
        return self.fold("Slice", [data, *bounds])

    def clip(
        self, data: str, least: float | None, most: float | None, output: str | None = None
    ) -> str:
        """Bound the elements of a value."""
        if self.opset < 11:
            return self.op("Clip", [data], output, min=least, max=most)
        bounds = [
            "" if each is None else self.constant(each, self.dtype(data)) for each in (least, most)
        ]
        return self.op("Clip", [data, *bounds], output)

    def reduce(
        self,
        operator: str,
        data: str,
        axes: Sequence[int] | None,
        keepdims: int = 1,
        output: str | None = None,
    ) -> str:
        """Reduce over axes, over all where these are None."""
        first = AXES_AS_INPUT if operator == "ReduceSum" else _REDUCTION_AXES_AS_INPUT
        if axes is None or self.opset < first:
            return self.op(operator, [data], output, axes=axes and list(axes), keepdims=keepdims)
        inputs = [data, self.constant(list(axes), np.int64)]
        return self.op(operator, inputs, output, keepdims=keepdims)

    def concat(self, parts: Sequence[str], axis: int, output: str | None = None) -> str:
        """Join along an axis; many parts in groups of a few."""
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
        """The model with the nodes that were added, and the constants that they read."""
        graph = self._model.graph
        for value in graph.output:
            if value.name in self._tensors and value.name not in self._given:
                # An output that is a constant is computed like any other.
                name = self.fresh(f"{value.name}_constant")
                self._set_constant(name, self.value(value.name))
                self._nodes.append(helper.make_node("Identity", [name], [value.name]))
        read = {value.name for value in graph.output} | set(_names_read(self._nodes))
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
        result.graph.sparse_initializer.extend(graph.sparse_initializer)
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


def _names_read(nodes: Iterable[NodeProto]) -> Iterator[str]:
    """What nodes and the graphs nested in them read."""
    for node in nodes:
        yield from node.input
        for attribute in node.attribute:
            for graph in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
                yield from _names_read(graph.node)
                yield from (value.name for value in graph.output)

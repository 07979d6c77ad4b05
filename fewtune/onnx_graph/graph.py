"""Small readers of an ONNX graph that the other modules of this package share."""

from __future__ import annotations

import contextlib
import graphlib
from collections.abc import Container, Iterable, Iterator
from typing import Any

import numpy as np
from onnx import (
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
    helper,
)

# C++ passes of the onnx package serialize the whole model, which protobuf refuses above 2 GB. So
# tensors above this size are taken out of the model before such a pass.
DETACHED_BYTES = 4096

# The two spellings of ONNX's default domain.
STANDARD = ("", "ai.onnx")
# The operator set from which on Squeeze and Unsqueeze have their axes as an input.
AXES_AS_INPUT = 13
# Operators whose outputs are random.
RANDOM = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike"}
    | {"RandomUniform", "RandomUniformLike"}
)


def graph_inputs(graph: GraphProto) -> list[ValueInfoProto]:
    """Inputs that the caller feeds; before IR version 4 initializers were listed as inputs too."""
    initializers = {tensor.name for tensor in graph.initializer}
    return [value for value in graph.input if value.name not in initializers]


def remove_inputs(graph: GraphProto, names: Container[str]) -> None:
    """Remove the inputs with these names, in place."""
    kept = [value for value in graph.input if value.name not in names]
    del graph.input[:]
    graph.input.extend(kept)


def opset_of(model: ModelProto) -> int:
    """Version of the default operator set (1 where the model names none)."""
    return max((o.version for o in model.opset_import if o.domain in STANDARD), default=1)


def attributes_of(node: NodeProto) -> dict[str, Any]:
    """A node's attributes by name."""
    return {each.name: helper.get_attribute_value(each) for each in node.attribute}


def set_attributes(node: NodeProto, **values: Any) -> None:
    """Set a node's attributes, in place; None removes one."""
    kept = [each for each in node.attribute if each.name not in values]
    made = [helper.make_attribute(k, each) for k, each in values.items() if each is not None]
    del node.attribute[:]
    node.attribute.extend([*kept, *made])


def optional(names: Iterable[str], count: int) -> list[str]:
    """The first ``count`` of a node's inputs or outputs; absent ones are empty strings."""
    return [*names, *[""] * count][:count]


def nested_graphs(node: NodeProto) -> Iterator[GraphProto]:
    """The graphs that a node holds as attributes, as ``If`` and ``Loop`` do."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def all_graphs(graph: GraphProto | FunctionProto) -> Iterator[GraphProto | FunctionProto]:
    """The graph and every graph nested in it."""
    yield graph
    for node in graph.node:
        for inner in nested_graphs(node):
            yield from all_graphs(inner)


def all_nodes(graph: GraphProto | FunctionProto) -> Iterator[NodeProto]:
    """Nodes of the graph and of every graph nested in it."""
    for each in all_graphs(graph):
        yield from each.node


def live_nodes(model: ModelProto) -> list[NodeProto]:
    """The nodes that an output depends on, in the order of the graph."""
    wanted = {value.name for value in model.graph.output}
    kept: list[NodeProto] = []
    for node in reversed(model.graph.node):
        if wanted.intersection(node.output):
            kept.append(node)
            wanted.update(reads(node))
    return kept[::-1]


def operator_name(node: NodeProto) -> str:
    """Operator of a node: ``Type``, or ``domain.Type`` outside the default domain."""
    return node.op_type if node.domain in STANDARD else f"{node.domain}.{node.op_type}"


def node_text(node: NodeProto) -> str:
    """A node as a message names it: ``Conv node 'head'``; without a name, by its first output."""
    operator = operator_name(node)
    if node.name:
        return f"{operator} node {node.name!r}"
    output = next((name for name in node.output if name), None)
    return f"the {operator} node without a name" + (f" that writes {output!r}" if output else "")


def set_nodes(model: ModelProto, nodes: Iterable[NodeProto]) -> None:
    """Replace a model's nodes by these, which may be some of its own, in place."""
    copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(copies)


def all_tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Tensors of the model: initializers and attributes, of nested graphs and functions too."""
    for part in (model.graph, *model.functions):
        for graph in all_graphs(part):
            yield from getattr(graph, "initializer", ())
            for attribute in (each for node in graph.node for each in node.attribute):
                yield from attribute.tensors
                if attribute.HasField("t"):
                    yield attribute.t


def element_count(tensor: TensorProto) -> int:
    """Number of elements of a tensor, without reading them."""
    return int(np.prod(list(tensor.dims), dtype=np.int64))


def tensor_bytes(tensor: TensorProto) -> int:
    """Bytes of a tensor's data, from its shape: protobuf's ByteSize serializes the tensor."""
    return element_count(tensor) * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize


def parameter_count(model: ModelProto) -> int:
    """Number of floating-point elements in the initializers."""
    return sum(element_count(t) for t in model.graph.initializer if is_float(t.data_type))


def is_float(element_type: int) -> bool:
    """Whether an ONNX element type is a floating-point one."""
    return "float" in type_name(element_type)


def is_native(element_type: int) -> bool:
    """Whether NumPy itself has an ONNX element type, as numbers or booleans."""
    dtype = helper.tensor_dtype_to_np_dtype(element_type)
    return dtype.isbuiltin == 1 and dtype.kind in "biuf"


def type_name(element_type: int) -> str:
    """NumPy's name of an ONNX element type, such as ``float32``."""
    return helper.tensor_dtype_to_np_dtype(element_type).name


def static_shape(value: ValueInfoProto) -> list[int] | None:
    """Shape of a value; None unless every dimension is known."""
    return static_sizes(value.type)


def static_sizes(kind: TypeProto) -> list[int] | None:
    """Shape of a type of values; None unless every dimension is known."""
    if not kind.tensor_type.HasField("shape"):
        return None
    sizes = [d.dim_value if d.HasField("dim_value") else -1 for d in kind.tensor_type.shape.dim]
    return None if min(sizes, default=0) < 0 else sizes


def values_of(model: ModelProto) -> Iterator[ValueInfoProto]:
    """Every value of the graph that has a type: inputs, inner values and outputs."""
    yield from [*model.graph.input, *model.graph.value_info, *model.graph.output]


def detach_weights(model: ModelProto) -> tuple[ModelProto, list[TensorProto]]:
    """Copy a model with its large and external initializers turned into graph inputs.

    Returns
    -------
    light_model, weights
        Give both to `attach_weights` to undo it. The weights are those of ``model``, not copies.
    """
    light_model = ModelProto()
    _copy_fields(model, light_model, leave="graph")
    _copy_fields(model.graph, light_model.graph, leave="initializer")
    inputs = {value.name for value in model.graph.input}
    weights = []
    for tensor in model.graph.initializer:
        external = tensor.data_location == TensorProto.EXTERNAL
        if tensor_bytes(tensor) < DETACHED_BYTES and not external:
            light_model.graph.initializer.append(tensor)
            continue
        weights.append(tensor)
        if tensor.name not in inputs:
            light_model.graph.input.append(
                helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            )
    return light_model, weights


def attach_weights(light_model: ModelProto, weights: list[TensorProto]) -> ModelProto:
    """Turn the inputs that `detach_weights` made back into initializers, in place."""
    remove_inputs(light_model.graph, {tensor.name for tensor in weights})
    light_model.graph.initializer.extend(weights)
    return light_model


def copy_model(model: ModelProto) -> ModelProto:
    """Copy a model of any size."""
    return attach_weights(*detach_weights(model))


def sort_nodes(model: ModelProto) -> None:
    """Sort a model's nodes topologically, in place.

    ONNX requires this order, and some exporters do not keep it. Sorted nodes keep their order; so
    do those of a graph with a cycle, which ONNX's checker refuses.
    """
    nodes = list(model.graph.node)
    producers = {name: place for place, node in enumerate(nodes) for name in node.output if name}
    waits = [{producers[name] for name in reads(node) if name in producers} for node in nodes]
    if all(max(sources, default=-1) < place for place, sources in enumerate(waits)):
        return
    sorter = graphlib.TopologicalSorter(dict(enumerate(waits)))
    with contextlib.suppress(graphlib.CycleError):
        set_nodes(model, [nodes[place] for place in sorter.static_order()])


def reads(node: NodeProto) -> set[str]:
    """Values of the surrounding graph that a node and its nested graphs read."""
    names = {name for name in node.input if name}
    for graph in nested_graphs(node):
        names |= _captured(graph)
    return names


def _captured(graph: GraphProto) -> set[str]:
    """Values of the surrounding graph that a nested graph reads."""
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    own |= {name for node in graph.node for name in node.output}
    read = {name for node in graph.node for name in reads(node)}
    read |= {value.name for value in graph.output}
    return read - own


def _copy_fields(source: Any, destination: Any, leave: str) -> None:
    for field, value in source.ListFields():
        if field.name == leave:
            continue
        if field.is_repeated:
            getattr(destination, field.name).extend(value)
        elif field.message_type is not None:
            getattr(destination, field.name).CopyFrom(value)
        else:
            setattr(destination, field.name, value)

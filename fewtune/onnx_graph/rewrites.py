"""Rewrites of an ONNX graph into forms that suit TVM's importer and layout conversion.

Each keeps the results of the model, and needs inferred shapes.
"""

from __future__ import annotations

import numpy as np
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from fewtune.onnx_graph.graph import (
    AXES_AS_INPUT,
    STANDARD,
    drop_unused_initializers,
    element_count,
    known_ranks,
    opset_of,
    set_nodes,
)
from fewtune.onnx_graph.operators.normalizations import EPSILON

_CHAINED = {"Sum": "Add", "Mean": "Add", "Max": "Max", "Min": "Min"}
_COMMUTATIVE = frozenset({"Add", "Mul"})
_BINARY = _COMMUTATIVE | {"Sub", "Div"}
_ONCE_BROADCAST = _BINARY | {"Pow", "And", "Or", "Xor", "Equal", "Greater", "Less"}
_BROADCASTING = 8
_PARAMETERS = 4
_PARTS = ("scaled", "factor", "offset")


def chain_variadic(model: ModelProto) -> None:
    """Rewrite Sum, Mean, Max and Min of several inputs as chains of binary operators, in place.

    TVM's importer stacks the inputs and reduces the new axis. That does not fuse with its
    neighbours, and stops the conversion of a convolution's layout.
    """
    if opset_of(model) < _BROADCASTING:
        return
    types = _element_types(model)
    nodes: list[NodeProto] = []
    for node in model.graph.node:
        if node.op_type not in _CHAINED or node.domain not in STANDARD:
            nodes.append(node)
            continue
        if len(node.input) == 1:
            nodes.append(_node("Identity", node.input, node.output, node.name))
        elif len(node.input) == 2 and _CHAINED[node.op_type] == node.op_type:
            nodes.append(node)
        else:
            nodes.extend(_chain(model, node, types.get(node.input[0], TensorProto.FLOAT)))
    set_nodes(model, nodes)


def _chain(model: ModelProto, node: NodeProto, element_type: int) -> list[NodeProto]:
    operator = _CHAINED[node.op_type]
    result = node.output[0]
    steps = []
    left = node.input[0]
    for index, right in enumerate(node.input[1:], start=1):
        last = index == len(node.input) - 1 and node.op_type != "Mean"
        output = result if last else f"{result}_{operator.lower()}_{index}"
        steps.append(_node(operator, [left, right], [output], f"{node.name or result}_{index}"))
        left = output
    if node.op_type == "Mean":
        count = f"{result}_count"
        values = np.array(len(node.input), helper.tensor_dtype_to_np_dtype(element_type))
        model.graph.initializer.append(numpy_helper.from_array(values, count))
        steps.append(_node("Div", [left, count], [result], node.name or result))
    return steps


def explicit_broadcasts(model: ModelProto) -> None:
    """Replace the ``broadcast`` and ``axis`` attributes of operators before opset 7, in place.

    onnx's own conversion to opset 7 aligns the second operand at the wrong axis (onnx 1.23).
    """
    ranks = known_ranks(model)
    nodes: list[NodeProto] = []
    for node in model.graph.node:
        attributes = {a.name: a.i for a in node.attribute if a.type == AttributeProto.INT}
        if node.op_type not in _ONCE_BROADCAST or not attributes.get("broadcast"):
            nodes.append(node)
            continue
        first, second = operands = list(node.input)
        if first in ranks and second in ranks and "axis" in attributes:
            axis = attributes["axis"] % max(1, ranks[first])
            trailing = ranks[first] - axis - ranks[second]
            if trailing > 0:
                aligned = f"{node.output[0]}_aligned"
                step = _node("Unsqueeze", [second], [aligned], aligned)
                axes = list(range(ranks[second], ranks[second] + trailing))
                step.attribute.append(helper.make_attribute("axes", axes))
                nodes.append(step)
                operands = [first, aligned]
        nodes.append(_node(node.op_type, operands, node.output, node.name))
    set_nodes(model, nodes)


def positive_axes(model: ModelProto) -> None:
    """Rewrite negative axes of Squeeze and Unsqueeze as positive ones, in place.

    A negative axis of Squeeze ends the layout conversion in ``std::bad_alloc``.
    """
    ranks = known_ranks(model)
    constants = _small_integers(model)
    as_input = opset_of(model) >= AXES_AS_INPUT
    for node in model.graph.node:
        if node.op_type not in ("Squeeze", "Unsqueeze") or node.input[0] not in ranks:
            continue
        rank = ranks[node.input[0]]
        if as_input:
            axes = constants.get(node.input[1]) if len(node.input) > 1 else None
        else:
            axes = next((list(a.ints) for a in node.attribute if a.name == "axes"), None)
        if axes is None or min(axes, default=0) >= 0:
            continue
        if node.op_type == "Unsqueeze":
            rank += len(axes)
        counted = [axis % rank for axis in axes]
        if as_input:
            name = f"{node.output[0]}_axes"
            values = np.array(counted, np.int64)
            model.graph.initializer.append(numpy_helper.from_array(values, name))
            node.input[1] = name
        else:
            kept = [a for a in node.attribute if a.name != "axes"]
            del node.attribute[:]
            node.attribute.extend([*kept, helper.make_attribute("axes", counted)])


def numbers_without_axes(model: ModelProto) -> None:
    """Reshape the one-element constants of elementwise operators to scalars, in place.

    TVM writes a scalar into the kernel, where a square becomes a product. A constant with axes is
    an argument of the kernel, which then does not know the exponent of a power.
    """
    ranks = known_ranks(model)
    initializers = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type not in _BINARY | {"Pow"} or opset_of(model) < _BROADCASTING - 1:
            continue
        for position, other in ((0, node.input[1]), (1, node.input[0])):
            constant = initializers.get(node.input[position])
            if constant is None or other in initializers or element_count(constant) != 1:
                continue
            # If it has more axes than the other operand, the result has them, too.
            if not 1 <= len(constant.dims) <= ranks.get(other, 0):
                continue
            name = f"{constant.name}_number"
            if name not in initializers:
                array = numpy_helper.to_array(constant).reshape(())
                model.graph.initializer.append(numpy_helper.from_array(array, name))
                initializers[name] = model.graph.initializer[-1]
            node.input[position] = name
    drop_unused_initializers(model)


def constants_of_full_rank(model: ModelProto) -> None:
    """Make the constant operand of an elementwise operator the second one, of rank 4, in place.

    If the other operand has rank 4, a constant of rank 1 to 3, or a constant first operand, leaves
    transposes around the operator after the layout conversion.
    """
    ranks = known_ranks(model)
    initializers = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type not in _BINARY or opset_of(model) < _BROADCASTING - 1:
            continue
        first, second = node.input
        if first in initializers and second not in initializers and node.op_type in _COMMUTATIVE:
            node.input[:] = [second, first]
        for position, other in ((0, node.input[1]), (1, node.input[0])):
            constant = initializers.get(node.input[position])
            if constant is None or ranks.get(other) != 4 or not 1 <= len(constant.dims) <= 3:
                continue
            name = f"{constant.name}_rank_4"
            if name not in initializers:
                array = numpy_helper.to_array(constant)
                array = array.reshape((1,) * (4 - array.ndim) + array.shape)
                model.graph.initializer.append(numpy_helper.from_array(array, name))
                initializers[name] = model.graph.initializer[-1]
            node.input[position] = name
    drop_unused_initializers(model)


def normalisations_as_scales(model: ModelProto) -> None:
    """Rewrite batch normalisations with constant parameters as a product and a sum, in place.

    A normalisation behind a convolution is folded into it. TVM imports any other, such as one
    behind a concatenation, as four operators. One is a division by a vector, which takes longer
    than all the rest.
    """
    ranks, types = known_ranks(model), _element_types(model)
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    nodes: list[NodeProto] = []
    for node in model.graph.node:
        if not _is_normalisation(node):
            nodes.append(node)
            continue
        data, rank = node.input[0], ranks.get(node.input[0], 0)
        parameters = [
            constants[name]
            for name in node.input[1:]
            if name in constants
            and len(constants[name].dims) == 1
            and constants[name].data_type == types.get(data)
        ]
        if rank < 2 or len(parameters) != _PARAMETERS:
            nodes.append(node)
            continue
        tensors = [numpy_helper.to_array(each) for each in parameters]
        model.graph.initializer.extend(_scale_and_offset(node, tensors, rank))
        result = node.output[0]
        scaled, factor, offset = (f"{result}_{part}" for part in _PARTS)
        nodes.append(_node("Mul", [data, factor], [scaled], scaled))
        nodes.append(_node("Add", [scaled, offset], [result], node.name or result))
    if len(nodes) > len(model.graph.node):
        set_nodes(model, nodes)
        drop_unused_initializers(model)


def _is_normalisation(node: NodeProto) -> bool:
    """Whether a node is a batch normalisation in inference mode, with one output."""
    return (
        node.op_type == "BatchNormalization"
        and node.domain in STANDARD
        and not any(each.name == "training_mode" and each.i for each in node.attribute)
        and sum(bool(name) for name in node.output) == 1
    )


def _scale_and_offset(node: NodeProto, tensors: list[np.ndarray], rank: int) -> list[TensorProto]:
    """Factors and offsets of a normalisation's channels, each (1, channels, 1, ...).

    They have full rank already: `constants_of_full_rank` does not know the product's rank.
    """
    epsilon = next((a.f for a in node.attribute if a.name == "epsilon"), EPSILON)
    scale, bias, mean, variance = (each.astype(np.float64) for each in tensors)
    factor = scale / np.sqrt(variance + epsilon)
    shape = (1, -1, *([1] * (rank - 2)))
    _, *names = (f"{node.output[0]}_{part}" for part in _PARTS)
    return [
        numpy_helper.from_array(values.reshape(shape).astype(tensors[0].dtype), name)
        for values, name in zip((factor, bias - mean * factor), names, strict=True)
    ]


def constant_nodes_to_initializers(model: ModelProto) -> None:
    """Replace Constant nodes by initialisers, in place, so that there is one kind of constant."""
    nodes = []
    for node in model.graph.node:
        tensor = constant_of(node) if node.op_type == "Constant" else None
        if tensor is None:
            nodes.append(node)
            continue
        model.graph.initializer.add().CopyFrom(tensor)
    if len(nodes) < len(model.graph.node):
        set_nodes(model, nodes)


def constant_of(node: NodeProto) -> TensorProto | None:
    """The tensor of a Constant node; None for strings and sparse tensors."""
    attribute = node.attribute[0]
    value = helper.get_attribute_value(attribute)
    if attribute.name == "value":
        tensor = TensorProto()
        tensor.CopyFrom(value)
        tensor.name = node.output[0]
        return tensor
    dtype = {"value_float": np.float32, "value_int": np.int64}.get(attribute.name.rstrip("s"))
    return (
        None if dtype is None else numpy_helper.from_array(np.array(value, dtype), node.output[0])
    )


def _element_types(model: ModelProto) -> dict[str, int]:
    graph = model.graph
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    for value in [*graph.input, *graph.value_info, *graph.output]:
        types[value.name] = value.type.tensor_type.elem_type
    return types


def _small_integers(model: ModelProto) -> dict[str, list[int]]:
    return {
        tensor.name: numpy_helper.to_array(tensor).ravel().tolist()
        for tensor in model.graph.initializer
        if tensor.data_type == TensorProto.INT64 and sum(tensor.dims) <= 16
    }


def _node(operator: str, inputs: list[str], outputs: list[str], name: str) -> NodeProto:
    return helper.make_node(operator, list(inputs), list(outputs), name=name)

"""Moves reshapes and transposes behind elementwise operators.

A product over the last axis of a tensor of rank 3 or 4 is exported, or written by onnxslim, as a
matrix product between two reshapes. An activation such as GELU follows the second reshape. TVM
fuses nothing into a product across a reshape, so the activation becomes a kernel of its own, which
reads and writes the whole tensor again. Elementwise operators give the same values in any shape, so
they swap with the reshape before them.

If layer norms stand between convolutions, residuals are summed between transposes to and from
channels last. The layout conversion cannot follow those, so the sum moves before the transpose.
"""

from __future__ import annotations

from collections import Counter

from onnx import ModelProto, NodeProto, ValueInfoProto

from fewtune.onnx_graph.graph import STANDARD, has_nested_graphs, set_nodes, static_shape

_PRODUCTS = frozenset({"Gemm", "MatMul"})
_UNARY = frozenset(
    {"Abs", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Log", "Mish"}
    | {"Neg", "Relu", "Sigmoid", "Softplus", "Sqrt", "Tanh"}
)
_BINARY = frozenset({"Add", "Div", "Max", "Min", "Mul", "Pow", "Sub"})


def reshapes_after_activations(model: ModelProto) -> None:
    """Move reshapes of matrix products behind the elementwise operators that follow, in place.

    Parameters
    ----------
    model : ModelProto
        With inferred shapes; those of moved values are dropped. A model with nested graphs, which
        may read these values, is left as it is.
    """
    if has_nested_graphs(model):
        return
    graph = model.graph
    shapes = {value.name: static_shape(value) for value in [*graph.input, *graph.value_info]}
    numbers = {tensor.name for tensor in graph.initializer if not tensor.dims}
    nodes = list(graph.node)
    outputs = {value.name for value in graph.output}
    producers = {name: node for node in nodes for name in node.output}
    for reshape in [node for node in nodes if node.op_type == "Reshape"]:
        before = producers.get(reshape.input[0])
        if before is not None and before.op_type in _PRODUCTS:
            _move(nodes, reshape, outputs, shapes, numbers)
    _drop_inverse_reshapes(nodes, outputs, shapes)
    set_nodes(model, nodes)
    left = {name for node in graph.node for name in node.output}
    values = [v for v in graph.value_info if v.name in left]
    del graph.value_info[:]
    graph.value_info.extend(values)


def transposes_after_sums(model: ModelProto) -> None:
    """Rewrite a binary operator on two equal transposes as one transpose of its result, in place.

    Parameters
    ----------
    model : ModelProto
        With inferred shapes, which are kept. A model with nested graphs is left as it is.
    """
    if has_nested_graphs(model):
        return
    values = {value.name: value for value in model.graph.value_info}
    added: list[ValueInfoProto] = []
    nodes = list(model.graph.node)
    transposes = {node.output[0]: node for node in nodes if node.op_type == "Transpose"}
    readers = Counter(value.name for value in model.graph.output)
    readers.update(name for node in nodes for name in node.input)
    result: list[NodeProto] = []
    for node in nodes:
        result.append(node)
        both = [transposes[name] for name in node.input if name in transposes]
        if node.op_type not in _BINARY or len(both) < len(node.input):
            continue
        orders = [list(each.attribute[0].ints) if each.attribute else [] for each in both]
        given = [values[each.input[0]] for each in both if each.input[0] in values]
        if orders[0] != orders[1] or len(given) < len(both) or given[0].type != given[1].type:
            continue
        # If both transposes have other readers, the new one would be a third.
        if all(readers[name] > 1 for name in node.input):
            continue
        transpose = NodeProto()
        transpose.CopyFrom(both[0])
        transpose.name, transpose.output[0] = f"{node.output[0]}_transposed", node.output[0]
        node.input[:] = [each.input[0] for each in both]
        node.output[0] = f"{node.output[0]}_before_transpose"
        transpose.input[0] = node.output[0]
        value = ValueInfoProto(name=node.output[0])
        value.type.CopyFrom(given[0].type)
        values[value.name] = value
        added.append(value)
        transposes[transpose.output[0]] = transpose
        result.append(transpose)
    read = {value.name for value in model.graph.output}
    read |= {name for node in result for name in node.input}
    set_nodes(model, (n for n in result if n.op_type != "Transpose" or n.output[0] in read))
    model.graph.value_info.extend(added)


def _move(
    nodes: list[NodeProto],
    reshape: NodeProto,
    outputs: set[str],
    shapes: dict[str, list[int] | None],
    numbers: set[str],
) -> None:
    """Move the elementwise operators that follow one reshape before it."""
    data, result = reshape.input[0], reshape.output[0]
    if shapes.get(data) is None or shapes.get(result) is None:
        return
    moved = _followers(nodes, result, shapes, numbers)
    places = {id(node) for node in moved}
    read = outputs | {name for node in nodes if id(node) not in places for name in node.input}
    leaving = [node for node in moved if node.output[0] in read]
    # Each result that others read needs a reshape: with two there would be more than before.
    if len(leaving) != 1 or result in read:
        return
    (last,) = leaving
    end = last.output[0]
    renamed = {node.output[0]: f"{node.output[0]}_before_reshape" for node in moved}
    renamed[result] = data
    for node in moved:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        node.output[0] = renamed[node.output[0]]
        shapes[node.output[0]] = shapes[data]
    reshape.input[0], reshape.output[0] = last.output[0], end
    nodes.remove(reshape)
    nodes.insert(next(i for i, node in enumerate(nodes) if node is last) + 1, reshape)


def _followers(
    nodes: list[NodeProto],
    result: str,
    shapes: dict[str, list[int] | None],
    numbers: set[str],
) -> list[NodeProto]:
    """Elementwise operators whose operands follow from one value and scalars alone."""
    found: list[NodeProto] = []
    values = {result}
    for node in nodes:
        is_unary = node.op_type in _UNARY and len(node.input) == 1
        is_binary = node.op_type in _BINARY and len(node.input) == 2
        if node.domain not in STANDARD or not (is_unary or is_binary):
            continue
        others = [name for name in node.input if name not in values]
        is_alike = shapes.get(node.output[0]) == shapes[result]
        if numbers.issuperset(others) and is_alike and len(others) < len(node.input):
            found.append(node)
            values.add(node.output[0])
    return found


def _drop_inverse_reshapes(
    nodes: list[NodeProto], outputs: set[str], shapes: dict[str, list[int] | None]
) -> None:
    """Drop pairs of reshapes that restore the first shape, and reshapes without readers."""
    reshapes = {node.output[0]: node for node in nodes if node.op_type == "Reshape"}
    undone = {}
    for name, node in reshapes.items():
        first = reshapes.get(node.input[0])
        if first is None or name in outputs:
            continue
        given = first.input[0]
        if shapes.get(given) is not None and shapes[given] == shapes.get(name):
            undone[name] = given
    for node in nodes:
        node.input[:] = [undone.get(name, name) for name in node.input]
    # Twice: the first reshape of a pair has no reader only when the second is gone.
    for _ in range(2):
        read = outputs | {name for node in nodes for name in node.input}
        nodes[:] = [n for n in nodes if n.op_type != "Reshape" or n.output[0] in read]

"""Canonical forms of rare graphs: duplicate names, constant outputs, odd poolings and others."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import ModelProto, NodeProto, helper

from fewtune.onnx_graph.graph import all_nodes, attributes_of, opset_of, set_attributes
from fewtune.onnx_graph.operators.builder import GraphBuilder, Handler, Scope
from fewtune.onnx_graph.operators.expand import expand

# Since this operator set, shape inference leaves out windows that start behind the end.
_FIRST_CORRECT_OPSET = 22
_POOLINGS = ("AveragePool", "LpPool", "MaxPool")


def canonicalize(model: ModelProto) -> None:
    """Rewrite rare forms of a graph as usual ones, in place.

    - Nodes of one name get different names: onnxruntime refuses duplicates.
    - Empty inputs at the end are removed: onnxruntime 1.31 crashes in some fusions with them.
    - Outputs that are initializers are copied.
    - ONNX's default domain has one spelling.
    - TopK sorts: the unsorted order is not specified, in onnxruntime or TVM.
    - STFT gets its default, one-sided: ONNX's shape inference (1.23) assumes two-sided.
    """
    nodes = list(all_nodes(model.graph))
    taken = {node.name for node in nodes}
    seen: set[str] = set()
    for node in nodes:
        if node.name in seen:
            node.name = _fresh(node.name, taken)
        seen.update(filter(None, [node.name]))
        node.domain = "" if node.domain == "ai.onnx" else node.domain
        while node.input and not node.input[-1]:
            del node.input[-1]
        if node.op_type == "TopK" and not node.domain:
            set_attributes(node, sorted=None)
        if node.op_type == "STFT" and "onesided" not in attributes_of(node):
            set_attributes(node, onesided=1)
    for opset in model.opset_import:
        opset.domain = "" if opset.domain == "ai.onnx" else opset.domain
    _copy_constant_outputs(model)


def _copy_constant_outputs(model: ModelProto) -> None:
    graph, tensors = model.graph, {tensor.name: tensor for tensor in model.graph.initializer}
    taken = {name for node in all_nodes(graph) for name in [*node.input, *node.output]}
    taken |= {value.name for value in [*graph.input, *graph.output]} | tensors.keys()
    for name in [value.name for value in graph.output if value.name in tensors]:
        tensors[name].name = _fresh(name, taken)
        for node in all_nodes(graph):
            node.input[:] = [tensors[name].name if each == name else each for each in node.input]
        graph.node.append(helper.make_node("Identity", [tensors[name].name], [name]))


def _fresh(name: str, taken: set[str]) -> str:
    number = 2
    while f"{name}_{number}" in taken:
        number += 1
    taken.add(f"{name}_{number}")
    return f"{name}_{number}"


def without_ceil_mode(model: ModelProto) -> ModelProto:
    """Pad poolings with ``ceil_mode`` whose last window would start behind the end.

    onnxruntime leaves that window out, as PyTorch does; ONNX's shape inference does so from
    operator set 22 on. With padding instead, the size is the same in every operator set.
    """
    rounded = any(attributes_of(node).get("ceil_mode") for node in all_nodes(model.graph))
    if not rounded or opset_of(model) >= _FIRST_CORRECT_OPSET:
        return model
    return expand(model, _WITHOUT_CEIL_MODE)


def _padded(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    shape = graph.shape(node.input[0])
    pads = None if shape is None else _pads_without(node, shape[2:])
    if pads is None:
        return False
    given = {**attributes_of(node), "pads": pads, "ceil_mode": None}
    graph.ops(node.op_type, node.input, node.output, **given)
    return True


_WITHOUT_CEIL_MODE: dict[tuple[str, str], Handler]
_WITHOUT_CEIL_MODE = {("", operator): _padded for operator in _POOLINGS}


def _pads_without(node: NodeProto, sizes: Sequence[int]) -> list[int] | None:
    """Padding with which a pooling needs no ``ceil_mode``; None if it stays as it is."""
    given = attributes_of(node)
    if not given.get("ceil_mode") or given.get("auto_pad", b"NOTSET") != b"NOTSET":
        return None
    axes, kernel = len(sizes), given["kernel_shape"]
    strides, dilations = (given.get(name) or [1] * axes for name in ("strides", "dilations"))
    pads = list(given.get("pads") or [0] * 2 * axes)
    is_behind, is_implied = False, False
    for axis, size in enumerate(sizes):
        window, begin = (kernel[axis] - 1) * dilations[axis] + 1, pads[axis]
        free = size + begin + pads[axes + axis] - window
        last = -(-free // strides[axis])
        if last * strides[axis] >= size + begin:
            is_behind = True
        elif last * strides[axis] > free:
            is_implied = True
            pads[axes + axis] += last * strides[axis] - free
    # A mean counts explicit padding, but not the padding that rounding up implies.
    if not is_behind or (is_implied and given.get("count_include_pad")):
        return None
    return pads

"""Constant folding: values known before the model runs are computed once and stored."""

from __future__ import annotations

import logging

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, helper, numpy_helper

from fewtune.errors import InputError
from fewtune.onnx_graph.graph import (
    RANDOM,
    STANDARD,
    element_count,
    has_nested_graphs,
    opset_of,
    set_nodes,
    static_shape,
)
from fewtune.onnx_graph.observed_shapes import run_onnxruntime_once

_LOG = logging.getLogger(__name__)
_MOST_ELEMENTS = 1 << 24
_NOT_FOLDED = RANDOM | {"DequantizeLinear", "Dropout", "Expand", "QuantizeLinear", "Tile"}


def fold_constants(model: ModelProto) -> None:
    """Replace values that follow from constants and static shapes by initialisers, in place.

    Parameters
    ----------
    model : ModelProto
        With inferred shapes. Nested graphs are left as they are.
    """
    _fold_shapes(model)
    _rewrite_empty_slices(model)
    known = {tensor.name: element_count(tensor) for tensor in model.graph.initializer}
    chosen: list[NodeProto] = []
    computed: set[str] = set()
    for node in model.graph.node:
        inputs = [name for name in node.input if name]
        if (
            node.op_type not in _NOT_FOLDED
            and node.domain in STANDARD
            and all(name in known or name in computed for name in inputs)
            and sum(known.get(name, 0) for name in inputs) <= _MOST_ELEMENTS
            and not any(each.HasField("g") for each in node.attribute)
        ):
            chosen.append(node)
            computed.update(name for name in node.output if name)
    if chosen:
        _compute(model, chosen, computed)


def _fold_shapes(model: ModelProto) -> None:
    """Replace each Shape or Size of a static value by a constant of the same name."""
    shapes, kept = _shapes(model.graph), []
    for node in model.graph.node:
        reads_shape = node.op_type in ("Shape", "Size") and node.domain in STANDARD
        shape = shapes.get(node.input[0]) if reads_shape else None
        if shape is None:
            kept.append(node)
            continue
        if node.op_type == "Size":
            value = np.array(np.prod(shape, dtype=np.int64))
        else:
            attributes = {each.name: each.i for each in node.attribute}
            value = np.array(shape[attributes.get("start", 0) : attributes.get("end")], np.int64)
        model.graph.initializer.append(numpy_helper.from_array(value, node.output[0]))
    if len(kept) < len(model.graph.node):
        set_nodes(model, kept)


def _rewrite_empty_slices(model: ModelProto) -> None:
    """Let empty slices start at 0, in place: TVM takes no slice that ends before its start."""
    graph = model.graph
    shapes = {v.name: static_shape(v) or [] for v in [*graph.value_info, *graph.output]}
    for node in graph.node:
        shape = shapes.get(node.output[0], [])
        if node.op_type != "Slice" or 0 not in shape:
            continue
        axes = len(shape)
        bounds = {"starts": [0] * axes, "ends": shape, "axes": range(axes), "steps": [1] * axes}
        del node.attribute[:], node.input[1:]
        for name, values in bounds.items():
            node.input.append(f"{node.output[0]}_{name}")
            tensor = numpy_helper.from_array(np.array(values, np.int64), node.input[-1])
            graph.initializer.append(tensor)


def _shapes(graph: GraphProto) -> dict[str, list[int] | None]:
    """Shape of each value; None where it is not static."""
    shapes: dict[str, list[int] | None] = {each.name: [*each.dims] for each in graph.initializer}
    values = [*graph.output, *graph.value_info, *graph.input]
    return shapes | {value.name: static_shape(value) for value in values}


def _compute(model: ModelProto, nodes: list[NodeProto], computed: set[str]) -> None:
    """Run nodes by onnxruntime and store those outputs that the rest of the model reads."""
    # Nodes are told apart by their outputs: comparing thousands of nodes takes minutes.
    kept = [node for node in model.graph.node if computed.isdisjoint(node.output)]
    read = {name for node in kept for name in node.input}
    read |= {value.name for value in model.graph.output}
    if has_nested_graphs(model):
        read |= computed
    wanted = sorted(computed & read)
    needed = {name for node in nodes for name in node.input}
    part = helper.make_model(
        helper.make_graph(
            nodes,
            "constants",
            [],
            [helper.make_empty_tensor_value_info(name) for name in wanted],
            [tensor for tensor in model.graph.initializer if tensor.name in needed],
        ),
        opset_imports=[helper.make_opsetid("", opset_of(model))],
        ir_version=model.ir_version,
    )
    try:
        (values,) = run_onnxruntime_once(part, [{}])
    except InputError as fault:
        values = fault
    if isinstance(values, Exception):
        _LOG.info("constants are not folded: %s", values)
        return
    if any(not isinstance(value, np.ndarray) or value.size > _MOST_ELEMENTS for value in values):
        return
    for name, value in zip(wanted, values, strict=True):
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    set_nodes(model, kept)

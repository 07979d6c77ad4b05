"""Values that are known before the model runs, computed once and stored."""

from __future__ import annotations

import logging

import numpy as np
import onnxruntime
from onnx import GraphProto, ModelProto, NodeProto, helper, numpy_helper

from fewtune.onnx_graph.graph import (
    element_count,
    has_nested_graphs,
    opset_of,
    set_nodes,
    static_shape,
)

_LOG = logging.getLogger(__name__)
_RANDOM = frozenset(
    {"Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike"}
    | {"RandomUniform", "RandomUniformLike"}
)
_MOST_ELEMENTS = 1 << 24
_NOT_FOLDED = frozenset({"DequantizeLinear", "QuantizeLinear", "Expand", "Tile"})


def fold_constants(model: ModelProto) -> None:
    """Replace what constants and shapes alone decide by initialisers, in place.

    Shapes of values whose shape is static are constants; so is what follows from them.

    Parameters
    ----------
    model : ModelProto
        Its shapes are inferred. Nested graphs are left as they are.
    """
    _fold_shapes(model)
    _begin_empty_slices_in_front(model)
    known = {tensor.name: element_count(tensor) for tensor in model.graph.initializer}
    chosen: list[NodeProto] = []
    computed: set[str] = set()
    for node in model.graph.node:
        inputs = [name for name in node.input if name]
        if (
            node.op_type not in _RANDOM | _NOT_FOLDED
            and node.domain in ("", "ai.onnx")
            and all(name in known or name in computed for name in inputs)
            and sum(known.get(name, 0) for name in inputs) <= _MOST_ELEMENTS
            and not any(each.HasField("g") for each in node.attribute)
        ):
            chosen.append(node)
            computed.update(name for name in node.output if name)
    if chosen:
        _compute(model, chosen, computed)


def _fold_shapes(model: ModelProto) -> None:
    """Let each Shape or Size of a static value be a constant of the same name."""
    shapes, kept = _shapes(model.graph), []
    for node in model.graph.node:
        is_asking = node.op_type in ("Shape", "Size") and node.domain in ("", "ai.onnx")
        shape = shapes.get(node.input[0]) if is_asking else None
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


def _begin_empty_slices_in_front(model: ModelProto) -> None:
    """Let slices of nothing begin and end in front: TVM has none whose end is before its begin."""
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
    """Static shapes, None of values whose shape is open."""
    shapes: dict[str, list[int] | None] = {each.name: [*each.dims] for each in graph.initializer}
    values = [*graph.output, *graph.value_info, *graph.input]
    return shapes | {value.name: static_shape(value) for value in values}


def _compute(model: ModelProto, nodes: list[NodeProto], computed: set[str]) -> None:
    """Run some nodes by onnxruntime and store what the rest of the model reads."""
    # By what they write: to compare nodes takes long, of thousands minutes.
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
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(
            part.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        values = session.run(wanted, {})
    except Exception as fault:  # noqa: BLE001 (onnxruntime raises a class a status)
        _LOG.info("constants are not folded: %s", fault)
        return
    if any(not isinstance(value, np.ndarray) or value.size > _MOST_ELEMENTS for value in values):
        return
    for name, value in zip(wanted, values, strict=True):
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    set_nodes(model, kept)

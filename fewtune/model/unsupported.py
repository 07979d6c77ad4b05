"""Finds all nodes of a model that TVM cannot import, by trying each alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from fewtune.artifacts import UnsupportedNode
from fewtune.errors import InputError
from fewtune.onnx_graph.graph import reads

_MOST_TRIALS = 400
# Of messages where sizes depend on values, such as those of a Slice by an input: TVM's and ours.
OPEN_SHAPES = "whose shapes only a run knows"
_OPEN_SIZE_MARKS = ("shape_func", OPEN_SHAPES)
_OPEN_SIZE = "the values that it reads choose its places or its size while the model runs"


class UnsupportedError(InputError):
    """A model holds nodes that cannot be imported.

    Attributes
    ----------
    unsupported : list of UnsupportedNode
        All of them.
    """

    def __init__(self, message: str, unsupported: list[UnsupportedNode]) -> None:
        super().__init__(message)
        self.unsupported = unsupported


def unsupported_nodes(
    model: ModelProto, lower: Callable[[ModelProto], Any], last_line: Callable[[Exception], str]
) -> list[UnsupportedNode]:
    """Try every node of a model alone, with the constants that it reads.

    Nodes that differ in names only are tried once.

    Parameters
    ----------
    model : ModelProto
        Simplified, with static shapes.
    lower : callable
        Imports and lowers a model; its exception is the reason.
    last_line : callable
        Gives the line of an exception that names its cause.

    Returns
    -------
    nodes : list of UnsupportedNode
        In the order of the graph.
    """
    values = {value.name: value for value in [*model.graph.input, *model.graph.value_info]}
    values |= {value.name: value for value in model.graph.output}
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    reasons: dict[bytes, str | None] = {}
    found = []
    for node in model.graph.node:
        alone = _alone(model, node, values, weights)
        if alone is None:
            continue
        key = _signature(node, alone)
        if key not in reasons and len(reasons) < _MOST_TRIALS:
            try:
                lower(alone)
                reasons[key] = None
            except Exception as fault:  # noqa: BLE001 (converters and passes raise many kinds)
                line = last_line(fault)
                reasons[key] = _OPEN_SIZE if any(m in line for m in _OPEN_SIZE_MARKS) else line
        reason = reasons.get(key)
        if reason is not None:
            name = node.name or next((output for output in node.output if output), "unnamed")
            found.append(UnsupportedNode(node=name, operator=operator_of(node), reason=reason))
    return found


def operator_of(node: NodeProto) -> str:
    """A node's operator, with its domain unless that is ONNX's own."""
    is_standard = node.domain in ("", "ai.onnx")
    return node.op_type if is_standard else f"{node.domain}.{node.op_type}"


def explain(nodes: list[UnsupportedNode]) -> str:
    """A sentence that names all unsupported nodes, by operator."""
    by_operator: dict[str, list[UnsupportedNode]] = {}
    for node in nodes:
        by_operator.setdefault(node.operator, []).append(node)
    parts = []
    for operator, group in by_operator.items():
        names = ", ".join(repr(node.node) for node in group[:5])
        more = f" and {len(group) - 5} more" if len(group) > 5 else ""
        noun = "node" if len(group) == 1 else "nodes"
        parts.append(f"{operator} ({noun} {names}{more}: {group[0].reason})")
    noun = "operator" if len(parts) == 1 else "operators"
    return (
        f"{noun} {'; '.join(parts)} cannot be imported: export the model without "
        f"{'it' if len(parts) == 1 else 'them'}, or end it before the first of these nodes"
    )


def _alone(
    model: ModelProto,
    node: NodeProto,
    values: dict[str, ValueInfoProto],
    weights: dict[str, TensorProto],
) -> ModelProto | None:
    """A model of one node; None if the shape of an input or output is not known."""
    names = sorted(reads(node))
    inputs = [name for name in names if name not in weights]
    outputs = [name for name in node.output if name]
    if any(name not in values for name in [*inputs, *outputs]):
        return None
    graph = helper.make_graph(
        [node],
        "alone",
        [values[name] for name in inputs],
        [values[name] for name in outputs],
        [weights[name] for name in names if name in weights],
    )
    alone = helper.make_model(graph, opset_imports=model.opset_import)
    alone.ir_version = model.ir_version
    return alone


def _signature(node: NodeProto, alone: ModelProto) -> bytes:
    """A key that is equal for nodes that differ in names only."""
    places = {name: str(place) for place, name in enumerate([*node.input, *node.output])}
    bare = NodeProto()
    bare.CopyFrom(node)
    bare.name = ""
    bare.doc_string = ""
    bare.input[:] = [places[name] if name else "" for name in node.input]
    bare.output[:] = [places[name] if name else "" for name in node.output]
    parts = [bare.SerializeToString()]
    parts += [value.type.SerializeToString() for value in [*alone.graph.input, *alone.graph.output]]
    for tensor in alone.graph.initializer:
        small = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).kind in "iub"
        content = numpy_helper.to_array(tensor).tobytes() if small else b""
        parts.append(repr((tensor.data_type, list(tensor.dims))).encode() + content)
    return b"|".join(parts)

"""LSTM, GRU and RNN that stay whole: one kernel computes all their steps.

That kernel (`fewtune.model.passes.loops.recurrence`) knows what exporters write: ONNX's own
activations, a GRU that resets after its product, sequences of one length, constant weights.
"""

from __future__ import annotations

from onnx import ModelProto, NodeProto, TensorProto, helper

from fewtune.onnx_graph.graph import all_nodes
from fewtune.onnx_graph.operators.builder import GraphBuilder, Handler, Scope
from fewtune.onnx_graph.operators.fused import optional
from fewtune.onnx_graph.operators.recurrent import layers

# Each sequence multiplies the weights for itself; a product of many has a schedule that does not.
_MOST_SEQUENCES = 4
_INPUTS = 8
# Of other attributes a layer has another kernel a step.
_KNOWN = frozenset({"direction", "hidden_size", "linear_before_reset", "layout", "input_forget"})
_KNOWN |= {"activations"}


def has_layers(model: ModelProto) -> bool:
    """Whether a model has recurrent layers."""
    return any(node.op_type in layers.DEFAULTS for node in all_nodes(model.graph))


def _expand(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    return not is_whole(graph, node) and layers.HANDLERS["", node.op_type](graph, node, scope)


def is_whole(graph: GraphBuilder, node: NodeProto) -> bool:
    """Whether the kernel computes this layer."""
    kind = node.op_type
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    data, *weights, lengths, hidden, cell, peepholes = optional(node.input, _INPUTS)
    shape = graph.shape(data)
    if shape is None or peepholes or given.keys() - _KNOWN:
        return False
    if given.get("layout") or given.get("input_forget"):
        return False
    if kind == "GRU" and not given.get("linear_before_reset"):
        return False
    names = [name.decode().capitalize() for name in given.get("activations", [])]
    defaults = layers.DEFAULTS[kind]
    if names and names != defaults * (len(names) // len(defaults)):
        return False
    steps, batch, _ = shape
    if not 1 < steps <= layers.MOST_STEPS or batch > _MOST_SEQUENCES:
        return False
    if lengths:
        known = graph.value(lengths)
        if known is None or (known < steps).any():
            return False
    floats = [name for name in (data, *weights, hidden, cell) if name]
    return all(graph.element_type(name) == TensorProto.FLOAT for name in floats) and all(
        graph.value(name) is not None for name in weights if name
    )


HANDLERS: dict[tuple[str, str], Handler] = dict.fromkeys(layers.HANDLERS, _expand)

"""LSTM, GRU and RNN that are not unrolled, since one kernel computes all their steps.

That kernel (`fewtune.model.passes.tvmscript.recurrence`) supports what exporters write: default
activations, sequences of one length, constant weights.
"""

from __future__ import annotations

from onnx import ModelProto, NodeProto, TensorProto

from fewtune.onnx_graph.graph import all_nodes, attributes_of, optional
from fewtune.onnx_graph.operators.builder import GraphBuilder, Handler, Scope
from fewtune.onnx_graph.operators.recurrent import layers

# The kernel reads the weights once for each sequence. For more sequences, an unrolled layer has
# matrix products, which read them once.
_MOST_SEQUENCES = 4
_INPUTS = 8
# A layer with other attributes is unrolled.
_KNOWN = frozenset({"direction", "hidden_size", "linear_before_reset", "layout", "input_forget"})
_KNOWN |= {"activations"}


def has_layers(model: ModelProto) -> bool:
    """Whether a model has recurrent layers."""
    return any(node.op_type in layers.DEFAULTS for node in all_nodes(model.graph))


def _expand(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    return not has_kernel(graph, node) and layers.HANDLERS["", node.op_type](graph, node, scope)


def has_kernel(graph: GraphBuilder, node: NodeProto) -> bool:
    """Whether the kernel computes this layer."""
    kind = node.op_type
    given = attributes_of(node)
    data, *weights, lengths, hidden, cell, peepholes = optional(node.input, _INPUTS)
    shape = graph.shape(data)
    if shape is None or peepholes or given.keys() - _KNOWN:
        return False
    if given.get("layout") or given.get("input_forget"):
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

"""Recurrent layers that are not unrolled, since one kernel computes all their steps.

That kernel (`fewtune.model.converters.recurrent_kernel`) supports what exporters write: default
activations, sequences of one length, constant weights.
"""

from __future__ import annotations

from onnx import ModelProto, NodeProto, TensorProto

from fewtune.onnx_graph.graph import all_nodes, attributes_of, optional
from fewtune.onnx_graph.operators.builder import MICROSOFT, GraphBuilder, Handler, Scope
from fewtune.onnx_graph.operators.recurrent import layers, quantized

# The kernel reads the weights once for each sequence. For more sequences, an unrolled layer has
# matrix products, which read them once.
_MOST_SEQUENCES = 4
_INPUTS = 8
# A layer with other attributes is unrolled.
_KNOWN = frozenset({"direction", "hidden_size", "linear_before_reset", "layout", "input_forget"})
_KNOWN |= {"activations"}


def has_layers(model: ModelProto) -> bool:
    """Whether a model has recurrent layers."""
    kinds = {operator for _, operator in _UNROLLED}
    return any(node.op_type in kinds for node in all_nodes(model.graph))


def _expand(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    if has_kernel(graph, node):
        return False
    domain = MICROSOFT if node.domain == MICROSOFT else ""
    return _UNROLLED[domain, node.op_type](graph, node, scope)


def has_kernel(graph: GraphBuilder, node: NodeProto) -> bool:
    """Whether the kernel computes this layer."""
    is_quantised = node.domain == MICROSOFT
    kind = "LSTM" if is_quantised else node.op_type
    given = attributes_of(node)
    data, *weights, lengths, hidden, cell, peepholes = optional(node.input, _INPUTS)
    shape = graph.shape(data)
    if shape is None or peepholes or given.keys() - _KNOWN:
        return False
    # Exporters of GRUs reset what was multiplied.
    if kind == "GRU" and not given.get("linear_before_reset"):
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
    # Behind the weights of a quantised layer are their scales and zero points.
    constants = [*weights, *node.input[_INPUTS:]]
    *products, bias = weights
    floats = [data, bias, hidden, cell, *([] if is_quantised else products)]
    return all(graph.element_type(name) == TensorProto.FLOAT for name in floats if name) and all(
        graph.value(name) is not None for name in constants if name
    )


_UNROLLED = layers.HANDLERS | quantized.HANDLERS
HANDLERS: dict[tuple[str, str], Handler] = dict.fromkeys(_UNROLLED, _expand)

"""The registry of operators that TVM's importer lacks or gets wrong, and their expansion.

A handler writes a node as others that the importer reads. Each family of operators has its file,
which lists its handlers by operator.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import onnx
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper, inliner

from fewtune.errors import InputError
from fewtune.onnx_graph.graph import STANDARD, all_nodes, operator_name, opset_of
from fewtune.onnx_graph.operators import (
    control_flow,
    elementwise,
    fused,
    normalizations,
    windows,
)
from fewtune.onnx_graph.operators.builder import GraphBuilder, Handler
from fewtune.onnx_graph.quantized import normalize

_LOG = logging.getLogger(__name__)
_FAMILIES = control_flow, elementwise, fused, normalizations, normalize, windows
# Used before a model is simplified.
EARLY: dict[str, Handler] = {
    operator: handler for family in _FAMILIES for operator, handler in family.HANDLERS.items()
}


def expand(model: ModelProto, handlers: dict[str, Handler]) -> ModelProto:
    """Expand a model's nodes by some handlers, such as `EARLY`.

    The model has static and inferred shapes, and is left as it is; the result is the model itself
    if it has nothing to expand.

    Raises
    ------
    InputError
        Naming every node of these operators that cannot be expanded, and why.
    """
    if handlers.keys().isdisjoint(map(operator_name, all_nodes(model.graph))):
        return model
    builder = GraphBuilder(model, handlers)
    for node in model.graph.node:
        builder.add(node, {})
    if builder.refusals:
        raise InputError("; ".join(builder.refusals))
    return builder.model()


# TVM 0.27's importer lacks these operators, or some of their forms.
_EXPANDED = frozenset(
    {"Attention", "BlackmanWindow", "CausalConvWithState", "Celu", "CenterCropPad"}
    | {"HammingWindow", "HannWindow", "HardSwish", "LinearAttention", "RMSNormalization"}
    | {"Range", "RotaryEmbedding", "Shrink", "SwiGLU", "Swish"}
)


def expand_functions(model: ModelProto) -> ModelProto:
    """Replace operators that TVM's importer lacks by the functions that ONNX defines them as.

    Parameters
    ----------
    model : ModelProto
        With detached weights and inferred shapes: some functions depend on their inputs' types.

    Returns
    -------
    model : ModelProto
        A copy without these operators; ``model`` itself if it has none, or onnx fails.
    """
    opset = opset_of(model)
    present = {node.op_type for node in all_nodes(model.graph) if node.domain in STANDARD}
    # A function may call others.
    known = (onnx.defs.get_schema(n, opset) for n in sorted(_EXPANDED) if onnx.defs.has(n, opset))
    chosen = [s.name for s in known if s.has_function or s.has_context_dependent_function]
    if present.isdisjoint(chosen):
        return model
    typed = ModelProto()
    typed.CopyFrom(model)
    for node in all_nodes(typed.graph):
        if node.op_type in chosen:
            schema = onnx.defs.get_schema(node.op_type, opset)
            _write_defaults(node, [each.default_value for each in schema.attributes.values()])
    # Some functions depend on the types of their inputs, constants among them.
    for tensor in model.graph.initializer:
        typed.graph.value_info.append(
            helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
        )
    # onnx's inliner (1.23) asks for the type of an optional input that is left out.
    typed.graph.value_info.append(helper.make_tensor_value_info("", TensorProto.FLOAT, None))
    try:
        result = inliner.inline_selected_functions(
            typed, [("", name) for name in chosen], inline_schema_functions=True
        )
    except Exception as fault:  # noqa: BLE001 (a C++ pass; what stays is named by the importer)
        _LOG.info("functions stay as they are: %s", fault)
        return model
    named = [value for value in result.graph.value_info if value.name]
    del result.graph.value_info[:]
    result.graph.value_info.extend(named)
    return result


def inlined(model: ModelProto) -> ModelProto:
    """The model with calls of its own functions replaced by their bodies.

    Defaults of attributes are written out first: onnx's inliner (1.23) ignores them.
    """
    defaults = {(f.domain, f.name, f.overload): f.attribute_proto for f in model.functions}
    complete = ModelProto()
    complete.CopyFrom(model)
    for part in (complete.graph, *complete.functions):
        for node in all_nodes(part):
            _write_defaults(node, defaults.get((node.domain, node.op_type, node.overload), ()))
    return inliner.inline_local_functions(complete, convert_version=True)


def _write_defaults(node: NodeProto, defaults: Iterable[AttributeProto]) -> None:
    """Write out a node's default attributes, which its function reads."""
    # One without a name is none.
    given = {"", *(each.name for each in node.attribute)}
    node.attribute.extend(each for each in defaults if each.name not in given)

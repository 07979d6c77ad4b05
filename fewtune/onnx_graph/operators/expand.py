"""The registry of operators that TVM's importer lacks or gets wrong, and their expansion.

A handler writes a node as others that the importer reads. Each family of operators has its file,
which lists its handlers by domain and operator.
"""

from __future__ import annotations

from onnx import ModelProto

from fewtune.errors import InputError
from fewtune.onnx_graph.graph import STANDARD, all_nodes
from fewtune.onnx_graph.operators import (
    control_flow,
    elementwise,
    fused,
    normalizations,
    tensors,
    windows,
)
from fewtune.onnx_graph.operators.builder import GraphBuilder, Handler
from fewtune.onnx_graph.quantized import normalize

_FAMILIES = control_flow, elementwise, fused, normalizations, normalize, tensors, windows
# Used before a model is simplified.
EARLY: dict[tuple[str, str], Handler] = {
    operator: handler for family in _FAMILIES for operator, handler in family.HANDLERS.items()
}


def expand(model: ModelProto, handlers: dict[tuple[str, str], Handler]) -> ModelProto:
    """Expand a model's nodes by some handlers, such as `EARLY`.

    The model has static and inferred shapes, and is left as it is; the result is the model itself
    if it has nothing to expand.

    Raises
    ------
    InputError
        Naming every node of these operators that cannot be expanded, and why.
    """
    kinds = {("" if n.domain in STANDARD else n.domain, n.op_type) for n in all_nodes(model.graph)}
    if not kinds & handlers.keys():
        return model
    builder = GraphBuilder(model, handlers)
    for node in model.graph.node:
        builder.add(node, {})
    if builder.refusals:
        raise InputError("; ".join(builder.refusals))
    return builder.model()

"""One pass over a model that expands operators that TVM's importer lacks."""

from __future__ import annotations

from onnx import ModelProto

from fewtune.errors import InputError
from fewtune.onnx_graph.graph import STANDARD, all_nodes
from fewtune.onnx_graph.operators import (
    attention,
    control_flow,
    convolutions,
    fused,
    hyperbolic,
    normalizations,
    plain,
    sequences,
    standard_attention,
)
from fewtune.onnx_graph.operators.builder import GraphBuilder, Handler
from fewtune.onnx_graph.operators.recurrent import kernel_layers, layers
from fewtune.onnx_graph.operators.recurrent import quantized as quantized_layers
from fewtune.onnx_graph.operators.tensors import (
    fourier,
    grouped_attention,
    indexing,
    split_pad,
)
from fewtune.onnx_graph.operators.vision import patches, pooling
from fewtune.onnx_graph.quantized import normalize

# Used before a model is simplified.
EARLY: dict[tuple[str, str], Handler] = {
    **control_flow.HANDLERS,
    **fused.HANDLERS,
    **attention.HANDLERS,
    **plain.HANDLERS,
    **hyperbolic.HANDLERS,
    **normalize.HANDLERS,
    **convolutions.HANDLERS,
    **normalizations.HANDLERS,
    **standard_attention.HANDLERS,
    **sequences.HANDLERS,
    **fourier.HANDLERS,
    **indexing.HANDLERS,
    **split_pad.HANDLERS,
    **grouped_attention.HANDLERS,
    **patches.HANDLERS,
    **pooling.HANDLERS,
}
# Used after a model is simplified: all recurrent layers are unrolled.
UNROLLED: dict[tuple[str, str], Handler] = {**layers.HANDLERS, **quantized_layers.HANDLERS}
# The same without layers of which one kernel computes all steps.
UNROLLED_WITHOUT_KERNEL: dict[tuple[str, str], Handler] = {**UNROLLED, **kernel_layers.HANDLERS}


def expand(model: ModelProto, handlers: dict[tuple[str, str], Handler]) -> ModelProto:
    """Expand a model's nodes by some handlers.

    Parameters
    ----------
    model : ModelProto
        With static and inferred shapes; it is left as it is.
    handlers : dict
        By domain and operator, such as `EARLY`.

    Returns
    -------
    model : ModelProto
        Same inputs, outputs and results; the model itself if it has nothing to expand.

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

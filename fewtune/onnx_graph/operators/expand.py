"""One walk through a model that expands what TVM's importer lacks."""

from __future__ import annotations

from onnx import ModelProto

from fewtune.errors import InputError
from fewtune.onnx_graph.graph import all_nodes
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
from fewtune.onnx_graph.operators.builder import STANDARD, GraphBuilder, Handler
from fewtune.onnx_graph.operators.classical import arithmetic, trees, vectors
from fewtune.onnx_graph.operators.quantized import affine, channels_last, microsoft, products
from fewtune.onnx_graph.operators.recurrent import layers, whole
from fewtune.onnx_graph.operators.recurrent import quantized as quantized_layers
from fewtune.onnx_graph.operators.tensors import (
    fourier,
    grouped_attention,
    ngrams,
    parts,
    places,
)
from fewtune.onnx_graph.operators.vision import patches, pooling

# Before quantised graphs are rewritten in integers, which knows ONNX's own operators.
FIRST = channels_last.HANDLERS
EARLY: dict[tuple[str, str], Handler] = {
    **FIRST,
    **control_flow.HANDLERS,
    **fused.HANDLERS,
    **attention.HANDLERS,
    **plain.HANDLERS,
    **hyperbolic.HANDLERS,
    **affine.HANDLERS,
    **products.HANDLERS,
    **microsoft.HANDLERS,
    **convolutions.HANDLERS,
    **normalizations.HANDLERS,
    **standard_attention.HANDLERS,
    **sequences.HANDLERS,
    **fourier.HANDLERS,
    **places.HANDLERS,
    **parts.HANDLERS,
    **ngrams.HANDLERS,
    **arithmetic.HANDLERS,
    **trees.HANDLERS,
    **vectors.HANDLERS,
    **grouped_attention.HANDLERS,
    **patches.HANDLERS,
    **pooling.HANDLERS,
}
LATE: dict[tuple[str, str], Handler] = {**layers.HANDLERS, **quantized_layers.HANDLERS}
# As `LATE`, without the layers that one kernel computes.
LATE_BUT_WHOLE: dict[tuple[str, str], Handler] = {**LATE, **whole.HANDLERS}


def expand(model: ModelProto, handlers: dict[tuple[str, str], Handler]) -> ModelProto:
    """Expand the nodes that a family of handlers knows.

    Parameters
    ----------
    model : ModelProto
        Static shapes, shapes inferred; it is left as it is.
    handlers : dict
        `EARLY`, before a model is simplified, or `LATE`, after it, or `LATE_BUT_WHOLE`.

    Returns
    -------
    model : ModelProto
        Same inputs, outputs and results; the model itself where it has nothing to expand.

    Raises
    ------
    InputError
        Naming every node that is of these kinds and cannot be expanded, and why.
    """
    kinds = {("" if n.domain in STANDARD else n.domain, n.op_type) for n in all_nodes(model.graph)}
    if not kinds & handlers.keys():
        return model
    builder = GraphBuilder(model, handlers)
    for node in model.graph.node:
        builder.add(node, {})
    if builder.refusals:
        reason = "; ".join(builder.refusals)
        hint = "" if ": " in reason else ": export the model without it, or end it before that node"
        raise InputError(reason + hint)
    return builder.model()

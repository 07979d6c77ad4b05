"""Inlines the branches that a bound model always takes."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto

from fewtune.onnx_graph.graph import all_nodes
from fewtune.onnx_graph.observed_shapes import draws, run_onnxruntime_once
from fewtune.onnx_graph.operators.control_flow import inline_constant_if
from fewtune.onnx_graph.operators.expand import expand


def inline_constant_branches(model: ModelProto) -> ModelProto:
    """Inline each If whose condition follows from constants and shapes.

    With a constant input, such as a sampling rate, whole networks may be in branches that never
    run. onnxruntime 1.31 crashes when it folds constants in such nested branches.

    Parameters
    ----------
    model : ModelProto
        With static shapes as far as they are known, and weights in memory. It is left as it is.

    Returns
    -------
    model : ModelProto
        The model itself if nothing can be inlined, or if onnxruntime without optimisations returns
        different outputs for the two models.
    """
    if not any(node.op_type == "If" for node in model.graph.node):
        return model
    settled = expand(model, {("", "If"): inline_constant_if})
    if len(_branching(settled)) == len(_branching(model)):
        return model
    feeds = list(draws(model))
    pairs = zip(
        run_onnxruntime_once(model, feeds), run_onnxruntime_once(settled, feeds), strict=True
    )
    compared = [pair for pair in pairs if not isinstance(pair[0], Exception)]
    return settled if compared and all(_equal(*pair) for pair in compared) else model


def _branching(model: ModelProto) -> list[NodeProto]:
    return [node for node in all_nodes(model.graph) if node.op_type == "If"]


def _equal(given: Any, settled: Any) -> bool:
    if isinstance(given, Exception) or isinstance(settled, Exception):
        return False
    return all(
        np.array_equal(one, other, equal_nan=np.asarray(one).dtype.kind == "f")
        for one, other in zip(given, settled, strict=True)
    )

"""Outputs of a small model as its kernels compute them, without schedules."""

from __future__ import annotations

from fewtune.model.lower import lower
from fewtune.onnx_graph.bind import bind_shapes
from fewtune.onnx_graph.simplify import simplify
from fewtune.runtime.executable import CompiledModel, build_executable
from tests import tuned_tiny


def compiled(model):
    target = tuned_tiny.target()
    lowered = lower(simplify(bind_shapes(model, {}, {})), target, "NCHW")
    return CompiledModel(build_executable(lowered, target), target)


def outputs(model, *runs):
    """The outputs of each run, by its inputs in order."""
    made = compiled(model)
    return [made.outputs([*inputs]) for inputs in runs]

"""Small models lowered and compiled, without schedules or with default ones."""

from __future__ import annotations

from fewtune.model.lower import lower
from fewtune.onnx_graph.bind import bind_shapes
from fewtune.onnx_graph.simplify import simplify
from fewtune.runtime.executable import CompiledModel, build_executable
from fewtune.schedule.defaults import apply_default_schedules
from fewtune.task.analysis import call_counts
from fewtune.verify.values import random_inputs, tensor_specs
from tests import tuned_tiny
from tests.made.outputs import relative_error, run_onnxruntime


def lowered(model, layout="NHWC", target=None, *passes, **given):
    """A model as it is imported, bound and simplified."""
    simplified = simplify(bind_shapes(model, {}, {}))
    return lower(simplified, target or tuned_tiny.target(), layout, *passes, **given)


def scheduled(module):
    """A lowered model with default schedules."""
    return apply_default_schedules(module, list(call_counts(module)), tuned_tiny.target())


def compiled(module, target=None):
    """A lowered model, to be run."""
    target = target or tuned_tiny.target()
    return CompiledModel(build_executable(module, target), target)


def outputs(model, *runs):
    """The outputs of each run, by its inputs in order."""
    made = compiled(lowered(model, "NCHW"))
    return [made.outputs([*inputs]) for inputs in runs]


def error_of(model, module):
    """How far the outputs of a lowered model are from onnxruntime's, on random inputs."""
    bound = bind_shapes(model, {}, {})
    inputs, _ = tensor_specs(bound)
    feeds = random_inputs(inputs, 0)
    actual = compiled(module).outputs([feeds[spec.name] for spec in inputs])
    return relative_error(actual, run_onnxruntime(bound, feeds, 1))

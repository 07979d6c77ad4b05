"""Weights laid out as their kernels read them: marked, rewritten, folded, and still right."""

from functools import cache

import numpy as np
import pytest

from fewtune.artifacts import ImportReport
from fewtune.measure.measurer import Measurer, module_specs
from fewtune.model.lower import lower
from fewtune.onnx_graph.session import OnnxruntimeSession
from fewtune.runtime.executable import CompiledModel, build_executable
from fewtune.runtime.tvm import tvm
from fewtune.schedule.defaults import apply_default_schedules, default_schedule
from fewtune.schedule.space.prior import Prior
from fewtune.schedule.space.search_space import SearchSpace
from fewtune.task import weight_layout
from fewtune.task.analysis import call_counts, calls_fit
from fewtune.verify.values import random_inputs
from tests import tuned_tiny
from tests.made.onnx_text import model_of
from tests.made.outputs import relative_error
from tests.tiny_models import random_weight, tiny_convolutional_model


@cache
def drawn() -> list[tvm.s_tir.Schedule]:
    """Schedules of the convolution ``b`` by rule."""
    space = SearchSpace(tuned_tiny.convolutions()["b"].mod, tuned_tiny.target())
    prior, random = Prior(space), np.random.default_rng(3)
    made = [space.make(prior.draw(random), seed) for seed in range(1, 12)]
    return [one.schedule for one in made if one.schedule is not None]


def test_a_gpu_keeps_its_layouts():
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90"})
    lowered = lower(tiny_convolutional_model(), target, "NHWC")
    functions = [f for _, f in lowered.functions_items() if isinstance(f, tvm.tirx.PrimFunc)]
    assert functions
    assert not any(weight_layout.free_places(function) for function in functions)


@pytest.mark.parametrize(("other", "free"), [("weight", True), ("given", False)])
def test_an_argument_is_free_only_where_every_call_gives_a_constant(other, free):
    model = model_of(
        f"""(float[8,8] input, float[8,8] given) => (float[8,8] left, float[8,8] second) {{
            first = MatMul (input, weight)
            left = Relu (first)
            second = MatMul (left, {other})
        }}""",
        weight=random_weight(np.random.default_rng(1), 8, 8),
    )
    lowered = lower(model, tuned_tiny.target(), "NHWC")
    products = [f for v, f in lowered.functions_items() if v.name_hint.startswith("matmul")]
    (product,) = products
    assert (weight_layout.FREE in (product.attrs or {})) == free


def outputs_error(folded: tvm.IRModule) -> float:
    """Largest relative error of the tiny model, so compiled, against onnxruntime."""
    inputs = ImportReport.read(tuned_tiny.imported()).inputs
    feeds = random_inputs(inputs, 5)
    session = OnnxruntimeSession(tuned_tiny.imported() / "model.onnx", 1)
    executable = build_executable(folded, tuned_tiny.target())
    actual = CompiledModel(executable, tuned_tiny.target()).outputs(
        [feeds[spec.name] for spec in inputs]
    )
    return relative_error(actual, session.run(feeds))


def test_folded_weights_compute_what_onnxruntime_does():
    lowered = tuned_tiny.lowered()
    kernel = lowered.get_global_var(tuned_tiny.convolutions()["b"].info.name)
    function = drawn()[0].mod["main"].with_attr("global_symbol", kernel.name_hint)
    scheduled = tvm.IRModule(dict(lowered.functions_items()), attrs=lowered.attrs)
    scheduled.update_func(kernel, function.with_attr("tirx.is_scheduled", True))
    folded = weight_layout.fold(scheduled)
    assert "layout_rewrite_preproc" in scheduled.script()
    # It keeps the mark, by which its weights may be prefetched.
    assert weight_layout.FREE in folded[kernel.name_hint].attrs
    # The permuting was done while compiling: main calls as many kernels as before.
    assert call_counts(folded) == call_counts(lowered)
    assert calls_fit(folded)
    assert outputs_error(folded) < 1e-5


def test_a_default_schedule_lays_weights_out_too():
    task, target = tuned_tiny.convolutions()["b"], tuned_tiny.target()
    schedule = default_schedule(task.mod, target)
    assert schedule is not None
    assert "layout_rewrite_preproc" in schedule.mod.script()
    replayed = tvm.s_tir.Schedule(task.mod)
    schedule.trace.apply_to_schedule(replayed, remove_postproc=False)
    assert replayed.mod.script() == schedule.mod.script()
    measurer = Measurer(tuned_tiny.pool())
    (outcome,) = measurer.measure([schedule.mod], [module_specs(task.mod)], [None])
    assert outcome.cause is None


def test_a_model_by_default_schedules_alone_computes_what_onnxruntime_does():
    lowered, target = tuned_tiny.lowered(), tuned_tiny.target()
    names = [variable.name_hint for variable, _ in lowered.functions_items()]
    scheduled = apply_default_schedules(lowered, names, target)
    assert "layout_rewrite_preproc" in scheduled.script()
    folded = weight_layout.fold(scheduled)
    assert outputs_error(folded) < 1e-5

"""Kernels of libraries, timed where the model calls them, and the rows made of it."""

import pytest

from fewtune.artifacts import (
    CompileReport,
    ImportReport,
    PredictReport,
    SharedTask,
    TuneReport,
)
from fewtune.benchmark.kernels import StepResults, kernel_rows
from fewtune.runtime.executable import CompiledModel
from fewtune.runtime.target import target_from_json
from fewtune.verify.values import random_inputs
from tests import tuned_tiny
from tests.made.results import share_report


def result(in_place: dict[str, int], set_aside: list[str], **sharing: object) -> StepResults:
    return StepResults(
        ImportReport.read(tuned_tiny.imported()),
        tuned_tiny.tasks(),
        PredictReport.read(tuned_tiny.predicted()),
        tuned_tiny.selection().model_copy(update={"set_aside": set_aside}),
        0.0,
        TuneReport.read(tuned_tiny.tuned()),
        share_report(tuned_tiny.NAME, **sharing),
        CompileReport.read(tuned_tiny.compiled()).model_copy(update={"in_place": in_place}),
    )


@pytest.mark.slow
def test_what_is_computed_in_place_has_no_latency():
    pool = next(task.info for task in tuned_tiny.tasks() if "pool" in task.info.name)
    rows = kernel_rows(result({pool.name: pool.weight}, [pool.name]), {}, None)
    row = next(row for row in rows if row.task == pool.name)
    assert (row.weight, row.latency_ms, row.schedule) == (0, None, "in place")
    assert not row.is_searched
    known = [row.share for row in rows if row.share is not None]
    assert sum(known) == pytest.approx(1.0)


@pytest.mark.slow
def test_a_latency_is_that_of_all_calls_over_their_number():
    aside, unmeasured = tuned_tiny.selection().set_aside, next(iter(tuned_tiny.tasks())).info.name
    told = {"donor": None, "trials": 0, "failures": {}}
    told |= {"default_ms": None, "best_ms": None, "status": "predicted"}
    of_step = result({}, aside, tasks=[SharedTask(task=unmeasured, **told)])
    calls = of_step.calls
    samples_s = {name: [0.002 * count, 0.001 * count, 9.0] for name, count in calls.items()}
    rows = kernel_rows(of_step, samples_s, None)
    assert [row.latency_ms for row in rows] == pytest.approx([2.0] * len(calls))
    assert sum(row.share for row in rows) == pytest.approx(1.0)
    assert {row.schedule for row in rows if row.task in aside} <= {"default", "predicted"}
    assert [row.schedule for row in rows if row.task == unmeasured] == ["predicted"]


@pytest.mark.slow
def test_a_library_tells_what_its_kernels_take():
    inputs = ImportReport.read(tuned_tiny.imported()).inputs
    feeds = random_inputs(inputs, 0)
    target = target_from_json(tuned_tiny.fingerprint().target)
    model = CompiledModel(tuned_tiny.compiled() / "model.so", target)
    ordered = [feeds[spec.name] for spec in inputs]
    before = model.outputs(ordered)
    times_s = model.kernel_times_s()
    assert all(each_s > 0 for each_s in times_s.values())
    assert not any("builtin" in symbol for symbol in times_s)
    # A second run is not added to the first, and the model itself runs on without a clock.
    assert set(model.kernel_times_s()) == set(times_s)
    assert all((a == b).all() for a, b in zip(model.outputs(ordered), before, strict=True))

"""The rows of kernels, from what each library's kernels take where the model calls them."""

import pytest

from fewtune.artifacts import (
    CompileReport,
    ImportReport,
    Prediction,
    PredictReport,
    TuneReport,
)
from fewtune.benchmark.kernels import kernel_rows
from fewtune.benchmark.result import StepResults
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
    aside = tuned_tiny.selection().set_aside
    of_step = result({}, aside, prediction=Prediction(predictor=None, points=1))
    calls = of_step.calls
    samples_s = {name: [0.002 * count, 0.001 * count, 9.0] for name, count in calls.items()}
    rows = kernel_rows(of_step, samples_s, None)
    assert [row.latency_ms for row in rows] == pytest.approx([2.0] * len(calls))
    assert sum(row.share for row in rows) == pytest.approx(1.0)
    assert {row.schedule for row in rows if row.task in aside} == {"default"}

"""The tuning loop on convolutions of a tiny model: its journal, its log, its budget."""

import pytest
import tvm_ffi

from fewtune.artifacts import Curve, TuneReport
from fewtune.runtime.tvm import ms, tvm
from fewtune.storage.database import RECORDS, WORKLOADS, best_trials
from fewtune.tuning.tune import tune
from tests import tuned_tiny
from tests.made.sessions import batches, conv, events_of, session

pytestmark = pytest.mark.slow


def test_the_written_log_is_tvms_own():
    directory = tuned_tiny.tuned()
    report = TuneReport.read(directory)
    (line,) = report.tasks
    assert line.task == conv("b").info.name
    # On a busy machine, each of six candidates may be slower than the default schedule.
    assert line.status in ("tuned", "slower_than_default")
    assert (report.trials, line.trials, report.stopped_by) == (6, 6, "trials")
    assert line.default_ms is not None
    assert Curve.read(directory).points[-1].trials == 6
    database = ms.database.JSONDatabase(
        str(directory / WORKLOADS), str(directory / RECORDS), allow_missing=False
    )
    records = list(database.get_all_tuning_records())
    assert {tvm_ffi.structural_hash(r.workload.mod) for r in records} == {
        tvm_ffi.structural_hash(conv("b").mod)
    }
    for record in records:
        schedule = tvm.s_tir.Schedule(record.workload.mod)
        record.trace.apply_to_schedule(schedule, remove_postproc=False)
        assert not tvm_ffi.structural_equal(schedule.mod, record.workload.mod)
    (best,) = best_trials(database, conv("b").mod, 1)
    assert sum(map(float, best.run_secs)) * 1e3 == pytest.approx(line.best_ms)


def test_a_first_batch_leaves_the_other_tasks_theirs(tmp_path):
    made = session(tmp_path / "journal.jsonl", "bcd", trials_per_task=2, batch_size=16)
    assert made.run() == "trials"
    made.journal.close()
    noted = [e["by_task"] for e in events_of(tmp_path / "journal.jsonl") if e["kind"] == "round"]
    assert [len(trials) for tried in noted for trials in tried.values()] == [2, 2, 2]
    assert {name for tried in noted for name in tried} == set(made.state.tasks)


def test_the_wall_clock_budget_begins_no_batch_it_cannot_half_finish(tmp_path):
    path = tmp_path / "journal.jsonl"
    # Batches until 10 and 20 s; half a batch more would reach 25 s.
    made = session(path, "c", trials_per_task=100, budget_s=25.0)
    assert made.run() == "budget"
    assert len(batches(path)) == 2
    assert made.state.trials == 6
    # Its seconds count when it is resumed: one more batch, until 30 s, is all that fits in 30.
    resumed = session(path, "c", trials_per_task=100, budget_s=30.0)
    assert resumed.elapsed_s == pytest.approx(20.0)
    assert resumed.run() == "budget"
    assert len(batches(path)) == 3


def test_a_larger_budget_goes_on(tmp_path):
    path = tmp_path / "journal.jsonl"
    assert session(path, "c", trials_per_task=3).run() == "trials"
    made = session(path, "c", trials_per_task=5)
    assert made.run() == "trials"
    assert made.state.trials == 5
    # These, and the default schedule.
    assert len(made.state.tasks[conv("c").info.name].known) == 6


def test_what_a_predictor_knows_is_not_searched(tmp_path):
    made = tuned_tiny.selection()
    known = made.model_copy(update={"known": made.worth})
    given = (tuned_tiny.fingerprint(), tuned_tiny.OPTIONS, tmp_path / "journals", tmp_path)
    report = tune(tuned_tiny.tasks(), known, *given)
    assert (report.tasks, report.trials, report.stopped_by) == ([], 0, "nothing_to_tune")

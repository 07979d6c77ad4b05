"""The tuning loop on convolutions of a tiny model: its journal, its log, its budget."""

import numpy as np
import pytest
import tvm_ffi

from fewtune.artifacts import Curve, TuneReport
from fewtune.runtime.tvm import ms, tvm
from fewtune.schedule.space.search_space import SearchSpace
from fewtune.search import Proposal
from fewtune.storage.database import RECORDS, WORKLOADS, best_trials
from fewtune.trial.outcome import Outcome
from fewtune.trial.trial import Trial
from fewtune.tuning.batch import TaskBatch
from fewtune.tuning.run_state import RunState
from fewtune.tuning.tune import stands_for, tune
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
    noted = [e for e in events_of(tmp_path / "journal.jsonl") if e["kind"] == "batch"]
    assert [len(event["trials"]) for event in noted] == [2, 2, 2]
    assert {event["task"] for event in noted} == set(made.state.tasks)


def test_a_turn_leaves_out_what_is_known_or_stands_twice():
    space = SearchSpace(conv("c").mod, tuned_tiny.target())
    random = np.random.default_rng(0)
    points = list(dict.fromkeys(space.random_point(random) for _ in range(8)))
    made = [one for one in space.make_all(points, [1] * len(points)) if one.schedule is not None]
    one, other = [Proposal(each.schedule, each.point) for each in made[:2]]
    state = RunState([conv("c")], [conv("c").info.name]).tasks[conv("c").info.name]
    assert TaskBatch.of(state, [one, other, one]).proposals == [one, other]
    state.add(Trial.measured(one.key, Outcome([1.0])))
    assert TaskBatch.of(state, [one, other, one]).proposals == [other]


def test_the_wall_clock_budget_begins_no_batch_it_cannot_half_finish(tmp_path):
    path = tmp_path / "journal.jsonl"
    # Defaults until 10 s, batches until 20 and 30 s; half a batch more would reach 35 s.
    made = session(path, "c", trials_per_task=100, budget_s=35.0)
    assert made.run() == "budget"
    assert len(batches(path)) == 2
    assert made.state.trials == 6
    # Its seconds count when it is resumed: one more batch, until 40 s, is all that fits in 40.
    resumed = session(path, "c", trials_per_task=100, budget_s=40.0)
    assert resumed.elapsed_s == pytest.approx(30.0)
    assert resumed.run() == "budget"
    assert len(batches(path)) == 3


def test_a_larger_budget_goes_on(tmp_path):
    path = tmp_path / "journal.jsonl"
    assert session(path, "c", trials_per_task=3).run() == "trials"
    made = session(path, "c", trials_per_task=5)
    assert made.run() == "trials"
    assert made.state.trials == 5
    assert len(made.state.tasks[conv("c").info.name].known) == 5
    assert [event["kind"] for event in events_of(path)].count("default") == 1


def test_nothing_to_tune_measures_the_defaults_only(tmp_path):
    made = session(tmp_path / "journal.jsonl", "c")
    made.state.tuned = []
    assert made.run() == "nothing_to_tune"
    assert made.state.tasks[conv("c").info.name].default.run_s == [1e-3]


def test_what_a_predictor_knows_is_not_searched(tmp_path):
    made = tuned_tiny.selection()
    known = made.model_copy(update={"known": made.worth})
    given = (tuned_tiny.fingerprint(), tuned_tiny.OPTIONS, tmp_path / "journals", tmp_path)
    report = tune(tuned_tiny.tasks(), known, *given)
    assert (report.tasks, report.trials, report.stopped_by) == ([], 0, "nothing_to_tune")


def test_representatives_stand_for_their_clusters():
    tasks = tuned_tiny.tasks()
    selection = tuned_tiny.selection()
    shares = {task.info.name: task.info.share for task in tasks}
    (leader,) = selection.representatives
    found = stands_for([conv("b")], tasks, selection)
    whole = sum(shares[conv(letter).info.name] for letter in "abc")
    assert found == {leader: pytest.approx(whole / shares[leader])}

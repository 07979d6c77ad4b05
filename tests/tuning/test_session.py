"""The tuning loop on a tiny model's convolution, killed and resumed."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import signal
import time
from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import psutil
import pytest
import tvm_ffi

from fewtune.artifacts import Curve, TuneReport
from fewtune.errors import JournalError
from fewtune.measure.measurer import Specs
from fewtune.progress.progress import Progress
from fewtune.runtime.tvm import ms, tvm
from fewtune.schedule.space.search_space import SearchSpace
from fewtune.schedule_check.check import ScheduleCheck
from fewtune.search import Proposal
from fewtune.storage.database import RECORDS, WORKLOADS, best_trials
from fewtune.storage.journal import Journal
from fewtune.task.extract import Task
from fewtune.trial.outcome import Outcome
from fewtune.trial.phases import Phases
from fewtune.trial.trial import Trial
from fewtune.trial.worker_reply import Built
from fewtune.tuning.batch import TaskBatch
from fewtune.tuning.child_process import journal_path, lay_crash
from fewtune.tuning.early_stopping import Patience
from fewtune.tuning.run_state import RunState
from fewtune.tuning.session import Session
from fewtune.tuning.tune import journal_header, run_session, stands_for
from fewtune.workers.build_queue import Building, building
from tests import tuned_tiny

pytestmark = pytest.mark.slow

BATCH_S = 10.0


class CountingMeasurer:
    """Answers at once that every candidate takes 1 ms; moves a clock by 10 s a batch.

    It says of each batch that one of its measurements was repeated.
    """

    def __init__(self) -> None:
        self.pool = tuned_tiny.pool()
        self.phases = Phases()
        self.failures: Counter[str] = Counter()
        self.repeats = 0
        self.most_flops_s = float("inf")
        self.now_s = 0.0

    def measure(
        self,
        modules: list[tvm.IRModule] | Building[Built],
        specs: list[Specs],
        best_s: list[float | None],
        races: list[str] | None = None,
        keys: list[tuple[str, str]] | None = None,
        checks: list[ScheduleCheck] | None = None,
    ) -> list[Outcome]:
        assert len(modules) == len(specs) == len(best_s)
        assert all(each is None or len(each) == len(modules) for each in (races, keys, checks))
        self.now_s += BATCH_S
        self.repeats += 1
        return [Outcome([1e-3])] * len(modules)

    def building(self) -> AbstractContextManager[Building[Built]]:
        return building(lambda _: [])

    def build(self, wanted: list[Built | tvm.IRModule]) -> list[Built | tvm.IRModule]:
        return wanted

    def duel(self, contestants: list[Built | tvm.IRModule], specs: Specs) -> list[Outcome]:
        assert specs
        return [Outcome([1e-3 + place * 1e-4]) for place, _ in enumerate(contestants)]


def session(path: Path, names: str, **changed: object) -> Session:
    """A session on convolutions of the tiny model whose measurements cost nothing."""
    tasks = [tuned_tiny.convolutions()[name] for name in names]
    measurer = CountingMeasurer()
    made = Session(
        tasks,
        [task.info.name for task in tasks],
        tuned_tiny.target(),
        tuned_tiny.OPTIONS.model_copy(update=changed),
        Journal(path, {}),
        Progress(stream=io.StringIO()),
        tuned_tiny.pool(),
        clock=lambda: measurer.now_s,
    )
    made.measurer = measurer
    return made


def batches(path: Path) -> list[str]:
    journal = Journal(path, {})
    journal.close()
    return [event["task"] for event in journal.events if event["kind"] == "batch"]


def conv(name: str) -> Task:
    return tuned_tiny.convolutions()[name]


def test_the_written_log_is_tvms_own() -> None:
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


def test_repeated_measurements_are_journalled(tmp_path: Path) -> None:
    tuned = session(tmp_path / "journal.jsonl", "c")
    tuned.run()
    tuned.journal.close()
    journalled = [event.get("repeats", 0) for event in events_of(tmp_path / "journal.jsonl")]
    # One batch of default schedules, two of trials.
    assert tuned.state.repeats == sum(journalled) == 1 + len(batches(tmp_path / "journal.jsonl"))


def test_a_first_batch_leaves_the_other_tasks_theirs(tmp_path: Path) -> None:
    made = session(tmp_path / "journal.jsonl", "bcd", trials_per_task=2, batch_size=16)
    assert made.run() == "trials"
    made.journal.close()
    noted = [e for e in events_of(tmp_path / "journal.jsonl") if e["kind"] == "batch"]
    assert [len(event["trials"]) for event in noted] == [2, 2, 2]
    assert {event["task"] for event in noted} == set(made.state.tasks)


def test_a_turn_leaves_out_what_is_known_or_stands_twice() -> None:
    space = SearchSpace(conv("c").mod, tuned_tiny.target())
    random = np.random.default_rng(0)
    points = list(dict.fromkeys(space.random_point(random) for _ in range(8)))
    made = [one for one in space.make_all(points, [1] * len(points)) if one.schedule is not None]
    one, other = [Proposal(each.schedule, each.point) for each in made[:2]]
    state = RunState([conv("c")], [conv("c").info.name]).tasks[conv("c").info.name]
    assert TaskBatch.of(state, [one, other, one]).proposals == [one, other]
    state.add(Trial.of(one.schedule, Outcome([1.0])))
    assert TaskBatch.of(state, [one, other, one]).proposals == [other]


def events_of(path: Path) -> list[dict]:
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [json.loads(line.partition(b" ")[2]) for line in lines]


@pytest.mark.parametrize("moment", ["start", "default", "batch"])
def test_a_killed_session_goes_on_where_it_was(tmp_path: Path, moment: str) -> None:
    task, fingerprint = conv("c"), tuned_tiny.fingerprint()
    options = tuned_tiny.OPTIONS.model_copy(update={"trials_per_task": 9})
    arguments = ([task], [task.info.name], fingerprint, options, tmp_path)
    header = journal_header(fingerprint, [task], [task.info.name], options, False)
    path = journal_path(tmp_path, header)

    def run_in_own_group() -> None:
        os.setsid()
        run_session(*arguments)

    child = multiprocessing.get_context("fork").Process(target=run_in_own_group)
    child.start()
    try:
        deadline = time.monotonic() + 60
        while not any(event["kind"] == moment for event in events_of(path)):
            assert child.is_alive()
            assert time.monotonic() < deadline
            time.sleep(0.005)
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.join()
    assert child.exitcode == -signal.SIGKILL
    before = [e for event in events_of(path) for e in event.get("trials", [])]
    assert len(before) <= 9
    assert len(before) >= 3 or moment != "batch"

    state = run_session(*arguments)
    after = [e for event in events_of(path) for e in event.get("trials", [])]
    assert after[: len(before)] == before
    assert len(after) == state.trials == 9
    assert len({json.dumps(entry["trace"]) for entry in after}) == 9
    assert [t.as_json() for t in state.tasks[task.info.name].trials] == after
    assert sum(event["kind"] == "default" for event in events_of(path)) == 1
    assert state.stopped_by == "trials"


@pytest.mark.parametrize("moment", ["loading", "measuring"])
def test_nothing_outlives_a_stage_that_is_killed(tmp_path: Path, moment: str) -> None:
    task, fingerprint = conv("c"), tuned_tiny.fingerprint()
    options = tuned_tiny.OPTIONS.model_copy(update={"trials_per_task": 300})
    header = journal_header(fingerprint, [task], [task.info.name], options, False)
    path = journal_path(tmp_path, header)

    def run_in_own_group() -> None:
        os.setsid()
        run_session([task], [task.info.name], fingerprint, options, tmp_path)

    child = multiprocessing.get_context("fork").Process(target=run_in_own_group)
    child.start()
    try:
        deadline = time.monotonic() + 60
        while not (
            len(in_group(child.pid)) > 1
            if moment == "loading"
            else any(event["kind"] == "batch" for event in events_of(path))
        ):
            assert time.monotonic() < deadline
            time.sleep(0.005)
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        # The tuning process, the one that forks workers, and the workers.
        while time.monotonic() < deadline and in_group(child.pid):
            time.sleep(0.05)
        assert in_group(child.pid) == []
    finally:
        if in_group(child.pid):
            os.killpg(child.pid, signal.SIGKILL)


def in_group(group: int) -> list[int]:
    """Living processes of a process group."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (psutil.Error, ProcessLookupError):
            continue
    return found


def test_a_crash_costs_its_task_only(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    bad, good = conv("b").info.name, conv("c").info.name
    journal = Journal(path, {})
    journal.append({"kind": "start", "task": bad})
    journal.close()
    journal = Journal(path, {})
    assert lay_crash(journal, "SIGSEGV") == bad
    journal.close()
    made = session(path, "bc", least_gain=0.0)
    assert made.run() == "trials"
    assert set(batches(path)) == {good}
    # The crashed task's share of the budget goes to the other.
    assert made.state.trials == 12
    line = made.state.tasks[bad].report()
    assert (line.status, line.note) == ("crashed", "TVM died of SIGSEGV")
    assert made.state.tasks[good].report().status == "tuned"


def test_a_crash_outside_of_any_task_ends_the_run(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "empty.jsonl", {})
    with pytest.raises(JournalError, match="SIGSEGV. outside of any task"):
        lay_crash(journal, "SIGSEGV")
    journal.close()
    journal = Journal(tmp_path / "crashed.jsonl", {})
    for event in ({"kind": "start", "task": "a"}, {"kind": "crash", "task": "a", "signal": "X"}):
        journal.append(event)
    journal.close()
    journal = Journal(tmp_path / "crashed.jsonl", {})
    with pytest.raises(JournalError, match="outside of any task"):
        lay_crash(journal, "SIGSEGV")
    journal.close()


def test_the_wall_clock_budget_begins_no_batch_it_cannot_half_finish(tmp_path: Path) -> None:
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


def test_a_larger_budget_goes_on_and_holds_another_final(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    assert session(path, "c", trials_per_task=3).run() == "trials"
    made = session(path, "c", trials_per_task=5)
    assert made.run() == "trials"
    assert made.state.trials == 5
    assert len(made.state.tasks[conv("c").info.name].known) == 5
    kinds = [event["kind"] for event in events_of(path)]
    assert kinds.count("finals") == 2
    assert kinds.count("default") == 1


def test_a_task_that_gains_nothing_ends_early(tmp_path: Path) -> None:
    made = session(tmp_path / "journal.jsonl", "c", trials_per_task=100, early_stopping_trials=3)
    assert made.run() == "converged"
    # The first batch has nothing before it to gain upon.
    assert made.state.trials == 6
    assert made.state.tasks[conv("c").info.name].report().note == "no 1 % gain in 3 trials"


def test_nothing_to_tune_measures_the_defaults_only(tmp_path: Path) -> None:
    made = session(tmp_path / "journal.jsonl", "c")
    made.state.tuned = []
    assert made.run() == "nothing_to_tune"
    assert made.state.tasks[conv("c").info.name].default.run_s == [1e-3]


def test_a_run_that_gains_nothing_ends_early(tmp_path: Path) -> None:
    made = session(
        tmp_path / "journal.jsonl", "bc", trials_per_task=30, run_early_stopping_trials=6
    )
    assert made.run() == "converged"
    # Every task had its first batch, and six trials changed nothing.
    assert made.state.trials == 6
    assert set(batches(tmp_path / "journal.jsonl")) == {conv("b").info.name, conv("c").info.name}


@pytest.mark.parametrize("allocation", ["gradient", "round_robin"])
def test_a_run_ends_where_nothing_visible_is_to_be_gained(tmp_path: Path, allocation: str) -> None:
    # Every candidate takes as long as the default schedule: there is next to nothing to gain.
    patient = session(
        tmp_path / "all.jsonl", "bc", allocation=allocation, trials_per_task=12, least_gain=0.0
    )
    assert patient.run() == "trials"
    assert patient.state.trials == 24
    hasty = session(
        tmp_path / "some.jsonl", "bc", allocation=allocation, trials_per_task=12, least_gain=0.9
    )
    assert hasty.run() == "converged"
    # Both tasks had their first batch: of one that was never tried nothing is known.
    assert [len(state.trials) for state in hasty.state.tasks.values()] == [3, 3]


def test_a_converged_run_stays_so_until_more_patience_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    options = {"trials_per_task": 12, "least_gain": 0.9}
    assert session(path, "bc", **options).run() == "converged"
    written = path.read_text()
    assert session(path, "bc", **options).run() == "converged"
    assert path.read_text() == written
    patient = session(path, "bc", **{**options, "least_gain": 0.0})
    assert patient.run() == "trials"
    assert patient.state.trials == 24


def test_a_threshold_is_of_the_whole_model(tmp_path: Path) -> None:
    made = session(tmp_path / "journal.jsonl", "bc", least_gain=0.1)
    for state in made.state.tasks.values():
        state.progress.weight, state.progress.best_s = 1, [1.0]
    assert made.patience.is_worth_it(0.2)
    assert not made.patience.is_worth_it(0.19)
    # These two are half of the model: the same seconds are half as large a part of it.
    half = Patience(made.options, made.state, covered=0.5)
    assert not half.is_worth_it(0.39)
    assert half.is_worth_it(0.4)
    first = next(iter(made.state.tasks.values()))
    first.progress.stands_for = 3.0
    assert not half.is_worth_it(0.79)
    assert half.is_worth_it(float("inf"))


def test_representatives_stand_for_their_clusters() -> None:
    tasks = tuned_tiny.tasks()
    selection = tuned_tiny.selection()
    shares = {task.info.name: task.info.share for task in tasks}
    (leader,) = selection.representatives
    found = stands_for([conv("b")], tasks, selection)
    whole = sum(shares[conv(letter).info.name] for letter in "abc")
    assert found == {leader: pytest.approx(whole / shares[leader])}

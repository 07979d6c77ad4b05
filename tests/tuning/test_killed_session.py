"""Tuning that is killed or crashes: what is lost, what goes on, what outlives it."""

import contextlib
import json
import multiprocessing
import os
import signal
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil
import pytest

from fewtune.process.child_python import CHILD_PYTHON
from fewtune.storage.journal import Journal
from fewtune.task.extract import Task
from fewtune.tuning.job import SessionJob, lay_crash, measured
from fewtune.tuning.tune import TuneJob
from tests import tuned_tiny
from tests.made.sessions import batches, conv, events_of, session
from tests.waiting import until

pytestmark = pytest.mark.slow


def events_in(folder: Path) -> list[dict]:
    """The events of the one journal of a folder; none before it is there."""
    return [event for path in folder.glob("*.jsonl") for event in events_of(path)]


@contextlib.contextmanager
def tuning_apart(job: TuneJob) -> Iterator[BaseProcess]:
    """A tuning in a process group of its own, all of which is killed in the end."""

    def run() -> None:
        os.setsid()
        # What it starts is in its group, too, if no warm process forks that.
        os.environ.pop(CHILD_PYTHON, None)
        measured(job)

    child = multiprocessing.get_context("fork").Process(target=run)
    child.start()
    try:
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.kill()
        child.join()


def job_on(task: Task, folder: Path, trials: int) -> TuneJob:
    options = tuned_tiny.OPTIONS.model_copy(update={"trials_per_task": trials})
    return tuned_tiny.job_of(TuneJob, [task], folder, options)


def test_a_session_that_is_killed_again_and_again_goes_on_where_it_was(tmp_path):
    task = conv("c")
    job = job_on(task, tmp_path, 9)

    def trials() -> list[dict]:
        return [
            entry
            for event in events_in(tmp_path)
            for entry in event.get("by_task", {}).get(task.info.name, [])
        ]

    def is_at(moment: str) -> bool:
        return any(event["kind"] == moment for event in events_in(tmp_path))

    before: list[dict] = []
    for moment in ("start", "round"):
        with tuning_apart(job) as child:
            until(lambda now=moment: is_at(now) or not child.is_alive(), pause_s=0.005)
            assert is_at(moment)
        assert child.exitcode == -signal.SIGKILL
        assert trials()[: len(before)] == before
        before = trials()
    assert 3 <= len(before) <= 9

    state = measured(job)
    after = trials()
    assert after[: len(before)] == before
    assert len(after) == state.trials == 9
    assert len({json.dumps(entry["trace"]) for entry in after}) == 9
    assert [t.as_json() for t in state.tasks[task.info.name].trials] == after
    assert state.stopped_by == "trials"


def test_nothing_outlives_a_stage_that_is_killed(tmp_path):
    task = conv("c")
    with tuning_apart(job_on(task, tmp_path, 300)) as child:
        until(lambda: any(event["kind"] == "round" for event in events_in(tmp_path)), pause_s=0.005)
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        # The tuning process, the one that forks workers, and the workers.
        until(lambda: not in_group(child.pid))


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


def begun(folder: Path, *events: dict) -> SessionJob:
    """A job whose journal holds events."""
    job = tuned_tiny.job_of(TuneJob, [], folder, tuned_tiny.OPTIONS)
    with job.opened() as journal:
        for event in events:
            journal.append(event)
    return job


def test_a_crash_is_the_fault_of_the_task_begun_last(tmp_path):
    start = {"kind": "start", "task": "a"}
    job = begun(tmp_path / "one", start)
    assert lay_crash(job, "SIGSEGV") == "a"
    with job.opened() as journal:
        assert journal.events == [start, {"kind": "crash", "task": "a", "signal": "SIGSEGV"}]
    # No task was begun since.
    assert lay_crash(job, "SIGSEGV") == lay_crash(begun(tmp_path / "empty"), "SIGSEGV") == ""


def test_a_crash_costs_its_task_only(tmp_path):
    path = tmp_path / "journal.jsonl"
    bad, good = conv("b").info.name, conv("c").info.name
    journal = Journal(path, {})
    journal.append({"kind": "crash", "task": bad, "signal": "SIGSEGV"})
    journal.close()
    made = session(path, "bc", least_gain=0.0)
    assert made.run() == "trials"
    assert set(batches(path)) == {good}
    # The crashed task's share of the budget goes to the other.
    assert made.state.trials == 12
    line = made.state.tasks[bad].report()
    assert (line.status, line.note) == ("crashed", "its search crashed (SIGSEGV)")
    assert made.state.tasks[good].report().status == "tuned"

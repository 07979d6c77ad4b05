"""Who measures what on a fleet: machines that answer, are lost, or die of a task."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import pytest

from fewtune.fleet.device import Cluster, FleetRun, parts_of
from fewtune.fleet.worker import Answer
from fewtune.options import TuneOptions
from fewtune.progress.progress import Progress
from fewtune.storage.journal import Journal
from fewtune.tuning.job import SessionJob
from fewtune.tuning.state import Start
from fewtune.tuning.tune import TuneJob
from tests import tuned_tiny
from tests.made.tasks import made_task

HEADER = {"of": "a test"}
TASKS = ("first", "second", "third")


class Sharing(SessionJob):
    """A job of which only the machines know more."""


class Machines:
    """A cluster that answers at once what it was prepared to, and records what it is asked."""

    def __init__(self, names: list[str], *answers: Answer) -> None:
        self.names, self.answers = names, list(answers)
        # Of each order: the machine, the session, and what it is made of if that is sent.
        self.asked: list[tuple[str, str, dict[str, Any] | None]] = []

    def addresses(self) -> set[str]:
        return {*self.names}

    def wait_for_machines(self, _its_class: object) -> list[str]:
        return list(self.names)

    def submit(self, carry_out: Callable[..., Answer], *order: Any, machine: str) -> Future:
        future = FutureOfDask()
        self.asked.append((machine, *order))
        answer = self.answers.pop(0) if self.answers else carry_out(*order)
        if answer.kind == "lost":
            self.names.remove(machine)
        else:
            future.set_result(answer)
        return future


class FutureOfDask(Future):
    """A future that is cancelled as Dask's is."""

    def cancel(self, force: bool = False) -> bool:
        return force


def job_of(kind: type[SessionJob], folder: Path, **more: Any) -> SessionJob:
    tasks = [made_task(name) for name in TASKS]
    return tuned_tiny.job_of(kind, tasks, folder, TuneOptions(), **more)


def done(
    folder: Path, machines: Machines, kind: type[SessionJob] = Sharing
) -> list[dict[str, Any]]:
    """Have the machines do it; what is in the journal then, without times."""
    path, job = folder / "journal.jsonl", job_of(kind, folder)
    with (folder / "said").open("a") as said:
        journal = Journal(path, HEADER)
        try:
            cluster, progress = cast(Cluster, machines), Progress(stream=said)
            FleetRun(job, cluster, journal, progress, lambda *_: Answer("done", [])).run()
        finally:
            journal.close()
            again = Journal(path, HEADER)
            again.close()
    added = ("elapsed_s", "stolen_s", "on")
    return [{k: v for k, v in event.items() if k not in added} for event in again.events]


def start(task: str) -> dict[str, Any]:
    return {"kind": "start", "task": task}


def batch(task: str) -> dict[str, Any]:
    empty: dict[str, Any] = {"finals": {}, "defaults": {}, "rest_s": 0.0, "phases": {}}
    tried = {"by_task": {task: []}, "donors": {task: []}}
    return {"kind": "round", "round": "alone", **tried, **empty}


def knew(machines: Machines) -> list[list[str] | None]:
    """The kinds of events that each order told, where it told any."""
    return [whole and [e["kind"] for e in whole["events"]] for _, _, whole in machines.asked]


def test_a_session_is_told_everything_once_and_then_asked_for_batches(tmp_path):
    first, second = [start("first"), batch("first")], [start("second"), batch("second")]
    machines = Machines(["one", "two"], Answer("batch", first), Answer("done", second))
    assert done(tmp_path, machines) == [*first, *second]
    assert [machine for machine, _, _ in machines.asked] == ["one", "one"]
    assert knew(machines) == [[], None]


@pytest.mark.parametrize("kind", ["died", "fault"])
def test_a_crash_is_laid_on_the_task_begun_last_and_what_came_before_is_kept(tmp_path, kind):
    first = [start("first"), batch("first"), start("second")]
    machines = Machines(["one"], Answer(kind, first, "SIGSEGV"))
    crash = {"kind": "crash", "task": "second", "signal": "SIGSEGV"}
    assert done(tmp_path, machines) == [*first, crash]
    assert knew(machines)[1] == ["start", "round", "start", "crash"]
    with pytest.raises(RuntimeError, match="one: KeyError"):
        done(tmp_path, Machines(["one"], Answer(kind, [], "KeyError: 'device'")))


def test_another_machine_goes_on_with_what_the_lost_one_had_measured(tmp_path):
    first = [start("first"), batch("first")]
    machines = Machines(["one", "two"], Answer("batch", first), Answer("lost", []))
    assert done(tmp_path, machines) == first
    assert [machine for machine, _, _ in machines.asked] == ["one", "one", "two"]
    assert knew(machines) == [[], None, ["start", "round"]]


def test_a_session_that_a_machine_lacks_is_told_everything_again(tmp_path):
    first = [start("first"), batch("first")]
    machines = Machines(["one"], Answer("batch", first), Answer("lacks", []))
    done(tmp_path, machines)
    assert knew(machines) == [[], None, ["start", "round"]]
    assert machines.asked[0][1] == machines.asked[1][1] != machines.asked[2][1]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_tuning_is_dealt_to_the_machines_and_finishes_once(tmp_path, count):
    starts = {name: Start(serves=place / 9) for place, name in enumerate(TASKS)}
    parts = [part.job.tasks for part in parts_of(job_of(TuneJob, tmp_path, starts=starts), count)]
    assert len(parts) == min(count, len(TASKS))
    assert sorted(task.info.name for tasks in parts for task in tasks) == sorted(TASKS)
    assert parts[0][0].info.name == "third"
    finish = {"kind": "finish", "stopped_by": "trials", "phases": {"run_s": 1.0}}
    machines = Machines(
        [f"machine{number}" for number in range(count)],
        *(Answer("done", [finish]) for _ in parts),
    )
    kinds = [event["kind"] for event in done(tmp_path, machines, TuneJob)]
    assert kinds == ["phases"] * (len(parts) - 1) + ["finish"]
    assert len({machine for machine, _, _ in machines.asked}) == len(parts)

"""Work that one machine of a fleet does: its crashes, its loss, its faults."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fewtune.errors import MachineError
from fewtune.fleet.orders import Answer
from fewtune.fleet.runner import on_one_machine
from fewtune.progress.progress import Progress
from fewtune.storage.journal import Journal
from fewtune.tuning.job import Work, Workplace
from tests.made.results import fingerprint

HEADER = {"of": "a test"}


def start(task: str) -> dict[str, Any]:
    return {"kind": "start", "task": task}


def batch(task: str) -> dict[str, Any]:
    return {"kind": "batch", "task": task, "trials": []}


class Machines:
    """Two machines that give prepared answers, and record what they are asked."""

    def __init__(self, *answers: Answer) -> None:
        self.idle = ["one", "two"]
        self.asked: list[str] = []
        self.knew: list[list[dict[str, Any]]] = []
        self._answers = list(answers)

    def give(
        self, machine: str, label: Any, order: dict[str, Any], whole: Callable[[], dict[str, Any]]
    ) -> None:
        assert order["work"].endswith(":SharingJob")
        self.asked.append(machine)
        self.knew.append(list(whole()["events"]))

    def next_answer(self) -> tuple[str, Any, Answer]:
        answer = self._answers.pop(0)
        if answer.lost:
            self.idle.remove(self.asked[-1])
        return self.asked[-1], None, answer

    def look(self) -> None:
        """No other machine comes."""


class SharingJob:
    """A job of which only the machines know more."""

    def as_json(self) -> dict[str, Any]:
        return {}

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> SharingJob:
        return cls()

    def run(self, place: Workplace) -> None:
        """It runs on a machine."""


def done(folder: Path, machines: Machines) -> list[dict[str, Any]]:
    """Have the machines do it; what is in the journal then."""
    path = folder / "journal.jsonl"
    work = Work(SharingJob(), [], fingerprint(), HEADER, folder)
    with (folder / "said").open("a") as said:
        journal = Journal(path, HEADER)
        try:
            on_one_machine(work, journal, Progress(stream=said), machines, "key")
        finally:
            journal.close()
            again = Journal(path, HEADER)
            again.close()
    return again.events


def test_a_crash_is_laid_on_the_task_begun_last_and_what_came_before_is_kept(
    tmp_path: Path,
) -> None:
    first, last = [start("a"), batch("a"), start("b")], [start("c"), batch("c")]
    machines = Machines(Answer(first, died="SIGSEGV"), Answer(last, is_done=True))
    crash = {"kind": "crash", "task": "b", "signal": "SIGSEGV"}
    assert done(tmp_path, machines) == [*first, crash, *last]
    assert machines.knew == [[], [*first, crash]]


def test_another_machine_goes_on_with_what_the_lost_one_had_measured(tmp_path: Path) -> None:
    first, last = [start("a"), batch("a")], [start("b"), batch("b")]
    machines = Machines(Answer(first), Answer([], lost=True), Answer(last, is_done=True))
    assert done(tmp_path, machines) == [*first, *last]
    assert machines.asked == ["one", "one", "two"]
    assert machines.knew[2] == first


def test_what_was_measured_is_journalled_before_a_fault_is_raised(tmp_path: Path) -> None:
    first = [start("a"), batch("a")]
    with pytest.raises(MachineError, match="no room"):
        done(tmp_path, Machines(Answer(first, fault=MachineError("no room"))))
    assert done(tmp_path, Machines(Answer([], is_done=True))) == first

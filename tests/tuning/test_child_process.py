"""The process that measures: a task is at fault for what it raises, not for what ends it."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from fewtune.process.apart import JobFailedError
from fewtune.process.ending import ending_early, listen
from fewtune.storage.journal import Journal
from fewtune.tuning.child_process import journal_path, supervise
from fewtune.tuning.job import SessionJob, Work, Workplace
from tests import tuned_tiny


@dataclass(frozen=True)
class Killed(SessionJob):
    """A session that begins a task and is sent a signal."""

    number: int

    def run(self, place: Workplace) -> None:
        place.journal.append({"kind": "start", "task": "conv"})
        listen()
        os.kill(os.getpid(), self.number)


@dataclass(frozen=True)
class Raises(SessionJob):
    """A session that raises in one of two tasks, and goes on without it; or before any."""

    begins: bool

    def run(self, place: Workplace) -> None:
        if not self.begins:
            raise KeyError("outside")
        crashed = {event["task"] for event in place.journal.events if event["kind"] == "crash"}
        for task in ("conv", "matmul"):
            if task not in crashed:
                place.journal.append({"kind": "start", "task": task})
                if task == "conv":
                    raise ValueError(f"a stack of TVM's\n{task} has no such loop")


def work(folder: Path, job: Killed | Raises) -> Work:
    return Work(job, [], tuned_tiny.fingerprint(), {"of": "a test"}, folder)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_child_interrupts_and_costs_no_task(tmp_path, number):
    asked = work(tmp_path, Killed(int(number)))
    with pytest.raises(KeyboardInterrupt):
        supervise(asked)
    journal = Journal(journal_path(tmp_path, asked.header), asked.header)
    journal.close()
    assert [event["kind"] for event in journal.events] == ["start"]


@pytest.mark.slow
def test_the_first_interrupt_ends_with_what_was_measured(tmp_path):
    asked = work(tmp_path, Killed(int(signal.SIGINT)))
    with ending_early(tmp_path / "end"):
        assert [event["kind"] for event in supervise(asked)] == ["start", "finish"]
        with pytest.raises(KeyboardInterrupt):
            supervise(asked)


@pytest.mark.slow
def test_an_exception_costs_its_task_only(tmp_path, capfd):
    events = supervise(work(tmp_path, Raises(begins=True)))
    assert [(event["kind"], event["task"]) for event in events] == [
        ("start", "conv"),
        ("crash", "conv"),
        ("start", "matmul"),
    ]
    reason = "ValueError: conv has no such loop"
    assert events[1]["signal"] == reason
    shown = capfd.readouterr()
    assert f"conv is left out: its search crashed ({reason})" in shown.out
    # The line does not say where.
    assert "Traceback" in shown.err


@pytest.mark.slow
def test_an_exception_outside_of_any_task_ends_the_run(tmp_path):
    with pytest.raises(JobFailedError, match="Traceback"):
        supervise(work(tmp_path, Raises(begins=False)))

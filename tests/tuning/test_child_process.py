"""The process that measures: a task is at fault for what it raises, not for what ends it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from fewtune.options import TuneOptions
from fewtune.process.apart import JobFailedError
from fewtune.process.ending import ending_early, listen
from fewtune.progress.progress import Progress
from fewtune.storage.journal import Journal
from fewtune.tuning.job import SessionJob, supervise
from tests import tuned_tiny


class Killed(SessionJob):
    """A session that begins a task and is sent a signal."""

    number: int

    def hold(self, journal: Journal, progress: Progress) -> None:
        journal.append({"kind": "start", "task": "conv"})
        listen()
        os.kill(os.getpid(), self.number)


class Raises(SessionJob):
    """A session that raises in one of two tasks, and goes on without it; or before any."""

    begins: bool

    def hold(self, journal: Journal, progress: Progress) -> None:
        if not self.begins:
            raise KeyError("outside")
        crashed = {event["task"] for event in journal.events if event["kind"] == "crash"}
        for task in ("conv", "matmul"):
            if task not in crashed:
                journal.append({"kind": "start", "task": task})
                if task == "conv":
                    raise ValueError(f"a stack of TVM's\n{task} has no such loop")


def asked_of(kind: type[SessionJob], folder: Path, **more: object) -> SessionJob:
    return tuned_tiny.job_of(kind, [], folder, TuneOptions(), **more)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_child_interrupts_and_costs_no_task(tmp_path, number):
    asked = asked_of(Killed, tmp_path, number=int(number))
    with pytest.raises(KeyboardInterrupt):
        supervise(asked)
    with asked.opened() as journal:
        pass
    assert [event["kind"] for event in journal.events] == ["start"]


@pytest.mark.slow
def test_the_first_interrupt_ends_with_what_was_measured(tmp_path):
    asked = asked_of(Killed, tmp_path, number=int(signal.SIGINT))
    with ending_early(tmp_path / "end"):
        assert [event["kind"] for event in supervise(asked)] == ["start", "finish"]
        with pytest.raises(KeyboardInterrupt):
            supervise(asked)


@pytest.mark.slow
def test_an_exception_costs_its_task_only(tmp_path, capfd):
    events = supervise(asked_of(Raises, tmp_path, begins=True))
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
        supervise(asked_of(Raises, tmp_path, begins=False))

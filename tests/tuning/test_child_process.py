"""The process that measures: a task is at fault for what it raises, not for what ends it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from fewtune.artifacts import Fingerprint
from fewtune.storage.journal import Journal
from fewtune.tuning.child_process import journal_path, supervise
from fewtune.tuning.job import Work
from tests import tuned_tiny


def is_killed(job: dict[str, Any], _tasks: Any, _target: Any, journal: Journal, *_: Any) -> None:
    """Work that begins a task and is sent a signal."""
    journal.append({"kind": "start", "task": "conv"})
    os.kill(os.getpid(), job["signal"])


def work(folder: Path, own: Fingerprint, number: signal.Signals) -> Work:
    function = f"{__name__}:is_killed"
    return Work(function, {"signal": int(number)}, [], own, {"of": "a test"}, folder)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_child_interrupts_and_costs_no_task(
    tmp_path: Path, number: signal.Signals
) -> None:
    asked = work(tmp_path, tuned_tiny.fingerprint(), number)
    with pytest.raises(KeyboardInterrupt):
        supervise(asked)
    journal = Journal(journal_path(tmp_path, asked.header), asked.header)
    journal.close()
    assert [event["kind"] for event in journal.events] == ["start"]


def raises(job: dict[str, Any], _tasks: Any, _target: Any, journal: Journal, *_: Any) -> None:
    """Work that raises in one of two tasks, and goes on without it; or before any."""
    if not job["begins"]:
        raise KeyError("outside")
    crashed = {event["task"] for event in journal.events if event["kind"] == "crash"}
    for task in ("conv", "matmul"):
        if task not in crashed:
            journal.append({"kind": "start", "task": task})
            if task == "conv":
                raise ValueError(f"a stack of TVM's\n{task} has no such loop")


@pytest.mark.slow
def test_an_exception_costs_its_task_only(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    function = f"{__name__}:raises"
    own = tuned_tiny.fingerprint()
    events = supervise(Work(function, {"begins": True}, [], own, {"of": "a test"}, tmp_path))
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
def test_an_exception_outside_of_any_task_ends_the_run(tmp_path: Path) -> None:
    asked = Work(
        f"{__name__}:raises", {"begins": False}, [], tuned_tiny.fingerprint(), {"of": "b"}, tmp_path
    )
    with pytest.raises(RuntimeError, match="see its traceback"):
        supervise(asked)

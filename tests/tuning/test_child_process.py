"""The process that measures: what ends it from outside is no fault of a task."""

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

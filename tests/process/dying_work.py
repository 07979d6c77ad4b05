"""Work that dies as native code does, for tests of what survives it."""

from __future__ import annotations

import errno
import os
import signal
import time
from pathlib import Path
from typing import Any

from fewtune.errors import VerificationError
from fewtune.process.apart import LEFT_OUT, at
from fewtune.process.optional_steps import OptionalSteps, with_most_steps
from tests.waiting import until

NAMES = ("fold", "transpose", "schedule")


def import_of(job: dict[str, Any]) -> dict[str, Any]:
    """Attempts with three optional steps, of which one dies; says what was left out."""

    def attempt(steps: OptionalSteps) -> str:
        for name in NAMES:
            if steps.uses(name):
                with steps.step(name):
                    at(f"TVM was at {name}")
                    if name == job.get("raises"):
                        raise ValueError("no such axis")
                    if name == job.get("dies"):
                        _die()
        at("the kernels were running")
        if job.get("dies") == "later" and steps.uses("schedule"):
            _die()
        return "made"

    known = dict(job[LEFT_OUT])
    made, failed = with_most_steps(attempt, NAMES, known)
    return {"made": made, "left_out": known | failed}


def once_there(job: dict[str, Any]) -> str:
    """Ends when a file is there."""
    until(Path(job["path"]).exists)
    return "seen"


def always(job: dict[str, Any]) -> None:
    """Dies, is killed, raises, or does not end."""
    at("the graph was being read")
    if job["how"] == "error":
        raise VerificationError("outputs differ")
    if job["how"] == "waits":
        time.sleep(60)
    if job["how"] == "fault":
        raise LookupError("no such thing")
    _die(getattr(signal, job["how"]))


def _die(number: int = signal.SIGSEGV) -> None:
    os.kill(os.getpid(), number)


class FullDisk:
    """A worker, of `fewtune.workers`, whose disk is full."""

    def __init__(self, *_: object) -> None:
        """What a worker is made of does not matter."""

    def get_ready(self) -> None:
        """Nothing is to be made ready."""

    def build(self, number: int, module_json: str) -> float:
        """Fails as writing a library does."""
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), f"kernel{number}.so")


def full_disk(job: dict[str, Any]) -> None:
    """Raises what writing to a full disk does."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(job["file"]))

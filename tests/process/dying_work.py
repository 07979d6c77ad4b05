"""Work that dies as native code does, for tests of what survives it."""

import errno
import os
import signal
import time
from pathlib import Path
from typing import Any

from fewtune.errors import VerificationError
from fewtune.process.apart import Job, at
from fewtune.process.optional_steps import OptionalSteps, with_most_steps
from tests.waiting import until

NAMES = ("fold", "transpose", "schedule")


class Steps(Job):
    """Attempts with three optional steps, of which one dies; says what was left out."""

    dies: str = ""
    raises: str = ""

    def run(self) -> dict[str, Any]:
        made, failed = with_most_steps(self._attempt, NAMES, self.left_out)
        return {"made": made, "left_out": self.left_out | failed}

    def _attempt(self, steps: OptionalSteps) -> str:
        for name in NAMES:
            if steps.uses(name):
                with steps.step(name):
                    at(f"TVM was at {name}")
                    if name == self.raises:
                        raise ValueError("no such axis")
                    if name == self.dies:
                        _die()
        at("the kernels were running")
        if self.dies == "later" and steps.uses("schedule"):
            _die()
        return "made"


class OnceThere(Job):
    """Ends when a file is there."""

    path: Path

    def run(self) -> str:
        until(self.path.exists)
        return "seen"


class Ends(Job):
    """Dies, is killed, raises, or does not end."""

    how: str

    def run(self) -> None:
        at("the graph was being read")
        if self.how == "error":
            raise VerificationError("outputs differ")
        if self.how == "waits":
            time.sleep(60)
        if self.how == "fault":
            raise LookupError("no such thing")
        if self.how == "exit":
            os._exit(1)
        if self.how == "disk":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "model.so")
        _die(getattr(signal, self.how))


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

    def forget(self) -> int:
        """It holds nothing."""
        return 0

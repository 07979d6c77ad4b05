"""The outcome of a candidate, and the replies of the worker that built and measured it."""

from __future__ import annotations

import statistics
from dataclasses import dataclass


class WorkerLostError(Exception):
    """The worker died or had to be killed; ``cause`` says which."""

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(message)
        self.cause = cause


class RequestFailedError(Exception):
    """The worker answered that the request failed; the worker is still alive."""


@dataclass(frozen=True)
class Built:
    """A compiled candidate, and the worker that has it."""

    worker: int
    number: int
    life: int = 0


# The cause of failure of a candidate with wrong outputs.
WRONG_OUTPUT = "wrong_output"


@dataclass(frozen=True)
class Outcome:
    """The outcome of one candidate: its times, or the cause of its failure.

    Attributes
    ----------
    run_s : list of float or None
        Seconds of one call, one sample for each repeat.
    cause : str or None
    message : str
    is_checked : bool
        Whether its outputs were compared with those of its task; for candidates with times.
    """

    run_s: list[float] | None
    cause: str | None = None
    message: str = ""
    is_checked: bool = True

    @staticmethod
    def of(fault: WorkerLostError | RequestFailedError, *, running: bool) -> Outcome:
        """The failure of a build, or of a measurement."""
        if isinstance(fault, RequestFailedError):
            return Outcome(None, "runtime_error" if running else "build_error", str(fault))
        died_running = running and fault.cause == "worker_crash"
        return Outcome(None, "runtime_crash" if died_running else fault.cause, str(fault))

    @property
    def median_s(self) -> float:
        """Median seconds of one call; infinite for a failed candidate."""
        return statistics.median(self.run_s) if self.run_s else float("inf")

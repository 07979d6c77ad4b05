"""What a worker answers: a built candidate, a failure, or nothing any more."""

from __future__ import annotations

from dataclasses import dataclass


class WorkerLostError(Exception):
    """The worker died or had to be killed; ``cause`` says which."""

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(message)
        self.cause = cause


class RequestFailedError(Exception):
    """The worker answered that the request failed; it lives on."""


@dataclass(frozen=True)
class Built:
    """A candidate that was compiled, and where."""

    worker: int
    number: int
    life: int = 0


@dataclass(frozen=True)
class Failure:
    """A candidate that failed: its cause and the last of what was said."""

    cause: str
    message: str

    @staticmethod
    def of(fault: WorkerLostError | RequestFailedError, *, running: bool) -> Failure:
        """What a build, or a measurement, failed of."""
        if isinstance(fault, RequestFailedError):
            return Failure("runtime_error" if running else "build_error", str(fault))
        died_running = running and fault.cause == "worker_crash"
        return Failure("runtime_crash" if died_running else fault.cause, str(fault))

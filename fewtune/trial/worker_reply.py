"""The replies of a worker: a built candidate, a failure, or none since it died."""

from __future__ import annotations

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


@dataclass(frozen=True)
class Failure:
    """A candidate that failed: the cause, and the end of the message."""

    cause: str
    message: str

    @staticmethod
    def of(fault: WorkerLostError | RequestFailedError, *, running: bool) -> Failure:
        """The failure of a build, or of a measurement."""
        if isinstance(fault, RequestFailedError):
            return Failure("runtime_error" if running else "build_error", str(fault))
        died_running = running and fault.cause == "worker_crash"
        return Failure("runtime_crash" if died_running else fault.cause, str(fault))

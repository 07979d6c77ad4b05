"""Measuring work, as it is sent to the process that does it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fewtune.artifacts import Fingerprint
from fewtune.measure.device import Device
from fewtune.progress.progress import Progress
from fewtune.runtime.tvm import tvm
from fewtune.storage.journal import Journal
from fewtune.task.extract import Task
from fewtune.workers.pool import WorkerPool


@dataclass(frozen=True)
class Workplace:
    """What a session works with: its tasks and journal, and the processes that measure."""

    tasks: list[Task]
    target: tvm.target.Target
    journal: Journal
    progress: Progress
    pool: WorkerPool
    device: Device


class SessionJob:
    """A session's arguments; they are pickled."""

    def run(self, place: Workplace) -> None:
        """Hold the session."""
        raise NotImplementedError


@dataclass(frozen=True)
class Work:
    """Measuring work for a process of its own, or for a fleet.

    Attributes
    ----------
    job : SessionJob
    tasks : list of Task
    fingerprint : Fingerprint
    header : dict
        What the journal's trials depend on; the journal is named after it.
    journal_directory : Path
        Scratch that outlives a kill.
    """

    job: SessionJob
    tasks: list[Task]
    fingerprint: Fingerprint
    header: dict[str, Any]
    journal_directory: Path


# Runs work and returns the events of its journal.
Runner = Callable[[Work], list[dict[str, Any]]]

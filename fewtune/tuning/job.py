"""Work as it is sent to the process that does it, and the job of a tuning session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

from fewtune.artifacts import Fingerprint
from fewtune.measure.device import Device
from fewtune.options import TuneOptions
from fewtune.progress.progress import Progress
from fewtune.runtime.tvm import tvm
from fewtune.storage.journal import Journal
from fewtune.task.extract import Task
from fewtune.trial.trial import Trial
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


class SessionJob(Protocol):
    """A session's arguments, as JSON, and the session itself."""

    def as_json(self) -> dict[str, Any]:
        """The job as JSON values."""

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> Self:
        """The job that `as_json` wrote."""

    def run(self, place: Workplace) -> None:
        """Hold the session."""


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

    @property
    def place(self) -> str:
        """Where another process finds the job's class: ``module:class``."""
        return f"{type(self.job).__module__}:{type(self.job).__qualname__}"


# Runs work and returns the events of its journal.
Runner = Callable[[Work], list[dict[str, Any]]]


@dataclass(frozen=True)
class TuneJob:
    """The work of a tuning session.

    Attributes
    ----------
    tuned : list of str
        Names of the tasks to search.
    options : TuneOptions
    seeds : dict of list of Trial
        Trials of older logs, by task: measured again before anything else.
    cold_weights : bool
        Whether measured calls find their weights in memory (`fewtune.timing.cache_state`).
    stands_for : dict of float, optional
        Share of the model's time that a task's schedules serve, over its own share.
    covered : float
        Part of the model's estimated time that the tasks, and those they stand for, make up.
    """

    tuned: list[str]
    options: TuneOptions
    seeds: dict[str, list[Trial]] = field(default_factory=dict)
    cold_weights: bool = False
    stands_for: dict[str, float] | None = None
    covered: float = 1.0

    def seeds_as_json(self) -> dict[str, list[dict[str, Any]]]:
        """The seeds as JSON values."""
        return {name: [trial.as_json() for trial in each] for name, each in self.seeds.items()}

    def as_json(self) -> dict[str, Any]:
        """The job as JSON values."""
        return {
            "tuned": self.tuned,
            "options": self.options.model_dump(mode="json"),
            "seeds": self.seeds_as_json(),
            "cold_weights": self.cold_weights,
            "stands_for": self.stands_for,
            "covered": self.covered,
        }

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> Self:
        """The job that `as_json` wrote."""
        seeds = {
            name: [Trial.from_json(entry) for entry in entries]
            for name, entries in given["seeds"].items()
        }
        options = TuneOptions.model_validate(given["options"])
        return cls(**{**given, "seeds": seeds, "options": options})

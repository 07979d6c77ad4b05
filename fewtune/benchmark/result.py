"""Options of a benchmark, and the outputs of earlier steps that it reads."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field

from fewtune.artifacts import (
    CompileReport,
    ImportReport,
    Selection,
    SelectionTiming,
    ShareReport,
    TuneReport,
)
from fewtune.task.extract import Task, read_tasks

_LEAST_ROUNDS = 3


class BenchmarkOptions(BaseModel):
    """How long a model is measured."""

    model_config = ConfigDict(extra="forbid")

    rounds: int = Field(
        default=30,
        ge=3,
        le=10_000,
        description="most rounds of all variants in turn; fewer where every median is known to "
        "one per cent before",
    )
    copies: int = Field(
        default=3,
        ge=1,
        le=16,
        description="copies of every library, and of onnxruntime's session, that take turns: how "
        "fast weights are read depends on the memory that they happen to get",
    )
    seed: int = Field(default=0, ge=0, lt=2**31, description="seed of the random inputs")


class CompareOptions(BenchmarkOptions):
    """How long two libraries of a model are measured, and how often anew."""

    processes: int = Field(
        default=4,
        ge=1,
        le=32,
        description="processes, one after the other, that share the rounds; an even number of "
        "them, for what is loaded first is slower, and they take turns in it",
    )

    @property
    def rounds_each(self) -> int:
        """Rounds of one process."""
        return max(_LEAST_ROUNDS, -(-self.rounds // self.processes))


class ResultFolders(NamedTuple):
    """The folders of one result's steps."""

    imported: Path
    tasks: Path
    selected: Path
    tuned: Path
    shared: Path
    compiled: Path


class StepResults(NamedTuple):
    """What the steps of one result wrote."""

    imported: ImportReport
    tasks: list[Task]
    selection: Selection
    selecting_s: float
    tuned: TuneReport
    shared: ShareReport
    compiled: CompileReport

    @classmethod
    def read(cls, folders: ResultFolders) -> Self:
        """Read everything."""
        return cls(
            ImportReport.read(folders.imported),
            read_tasks(folders.tasks),
            Selection.read(folders.selected),
            SelectionTiming.read(folders.selected).selecting_s,
            TuneReport.read(folders.tuned),
            ShareReport.read(folders.shared),
            CompileReport.read(folders.compiled),
        )

    @property
    def calls(self) -> dict[str, int]:
        """Calls of each task in one run of the library: none where all are computed in place."""
        in_place = self.compiled.in_place
        return {
            task.info.name: task.info.weight - in_place.get(task.info.name, 0)
            for task in self.tasks
        }

    @property
    def flops(self) -> float:
        """Operations of one run."""
        return sum(task.info.flops * task.info.weight for task in self.tasks)

    @property
    def byte_flops(self) -> float:
        """Those of them that are of products of bytes."""
        return sum(task.info.byte_flops * task.info.weight for task in self.tasks)

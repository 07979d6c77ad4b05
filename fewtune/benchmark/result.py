"""Options of a benchmark, and the outputs of earlier steps that it reads."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Self

from fewtune.artifacts import (
    CompileReport,
    ImportReport,
    PredictReport,
    Selection,
    SelectionTiming,
    ShareReport,
    TuneReport,
)
from fewtune.task.extract import Task, read_tasks


class ResultFolders(NamedTuple):
    """The folders of one result's steps."""

    imported: Path
    tasks: Path
    predicted: Path
    selected: Path
    tuned: Path
    shared: Path
    compiled: Path


class StepResults(NamedTuple):
    """What the steps of one result wrote."""

    imported: ImportReport
    tasks: list[Task]
    predicted: PredictReport
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
            PredictReport.read(folders.predicted),
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

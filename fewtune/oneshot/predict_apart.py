"""One-shot in a process of its own: a task that TVM crashes on keeps its default schedule."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fewtune.artifacts import Fingerprint, Selection, ShareReport
from fewtune.oneshot.predict import predict_schedules
from fewtune.options import ShareOptions
from fewtune.task.extract import read_tasks
from fewtune.util.apart import LEFT_OUT, run_apart


@dataclass(frozen=True)
class PredictJob:
    """The arguments of `predict_apart`.

    Parameters
    ----------
    task_directory, select_directory : Path
        Of the model's tasks, and their selection.
    fingerprint : Path
        The machine's file.
    options, directory, bank_directory
        As of `fewtune.oneshot.predict.predict_schedules`.
    """

    task_directory: Path
    select_directory: Path
    fingerprint: Path
    options: ShareOptions
    directory: Path
    bank_directory: Path | None = None

    def as_json(self) -> dict[str, Any]:
        """As JSON values; paths are absolute."""
        return {
            "tasks": str(self.task_directory.absolute()),
            "selected": str(self.select_directory.absolute()),
            "fingerprint": str(self.fingerprint.absolute()),
            "options": self.options.model_dump(mode="json"),
            "directory": str(self.directory.absolute()),
            "bank": None if self.bank_directory is None else str(self.bank_directory.absolute()),
        }


def predict_apart(job: PredictJob) -> ShareReport:
    """Predict as `fewtune.oneshot.predict.predict_schedules` does.

    Raises
    ------
    InputError
        As there, or if native code crashes whatever is left out.
    MachineError
        If the system kills the process because memory ran out.
    """
    run_apart(f"{__name__}:predict_here", job.as_json())
    return ShareReport.read(job.directory)


def predict_here(job: dict[str, Any]) -> None:
    """Do the job of `predict_apart` in this process; ``job`` is `PredictJob.as_json`'s."""
    predict_schedules(
        read_tasks(Path(job["tasks"])),
        Selection.read(Path(job["selected"])),
        Fingerprint.read(Path(job["fingerprint"])),
        ShareOptions.model_validate(job["options"]),
        Path(job["directory"]),
        None if job["bank"] is None else Path(job["bank"]),
        left_out=job[LEFT_OUT],
    )

"""One-shot in a process of its own: a task that TVM crashes on keeps its default schedule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fewtune.artifacts import Fingerprint, Selection, ShareReport
from fewtune.oneshot.predict import predict_schedules
from fewtune.options import ShareOptions
from fewtune.task.extract import read_tasks
from fewtune.util.apart import LEFT_OUT, run_apart


def predict_apart(
    task_directory: Path,
    select_directory: Path,
    fingerprint: Path,
    options: ShareOptions,
    directory: Path,
    bank_directory: Path | None = None,
) -> ShareReport:
    """Predict as `fewtune.oneshot.predict.predict_schedules` does.

    Parameters
    ----------
    task_directory, select_directory : Path
        Of the model's tasks, and their selection.
    fingerprint : Path
        The machine's file.
    options, directory, bank_directory
        As there.

    Raises
    ------
    InputError
        As there, or if native code crashes whatever is left out.
    MachineError
        If the system kills the process because memory ran out.
    """
    given = (task_directory, select_directory, fingerprint, options, directory, bank_directory)
    run_apart(f"{__name__}:predict_here", job_of(*given))
    return ShareReport.read(directory)


def job_of(
    task_directory: Path,
    select_directory: Path,
    fingerprint: Path,
    options: ShareOptions,
    directory: Path,
    bank_directory: Path | None = None,
) -> dict[str, Any]:
    """What `predict_here` is given, as JSON values; arguments as of `predict_apart`."""
    return {
        "tasks": str(task_directory.absolute()),
        "selected": str(select_directory.absolute()),
        "fingerprint": str(fingerprint.absolute()),
        "options": options.model_dump(mode="json"),
        "directory": str(directory.absolute()),
        "bank": None if bank_directory is None else str(bank_directory.absolute()),
    }


def predict_here(job: dict[str, Any]) -> None:
    """Do the job of `predict_apart` in this process."""
    predict_schedules(
        read_tasks(Path(job["tasks"])),
        Selection.read(Path(job["selected"])),
        Fingerprint.read(Path(job["fingerprint"])),
        ShareOptions.model_validate(job["options"]),
        Path(job["directory"]),
        None if job["bank"] is None else Path(job["bank"]),
        left_out=job[LEFT_OUT],
    )

"""Imports a model in a child process, which TVM or onnxruntime may crash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fewtune.artifacts import ImportReport
from fewtune.model.import_model import import_model
from fewtune.model.import_options import ImportOptions
from fewtune.process.apart import LEFT_OUT, run_apart
from fewtune.runtime.target import target_from_json


def import_apart(
    name: str,
    models_directory: Path,
    target: str,
    threads: int,
    options: ImportOptions,
    directory: Path,
) -> ImportReport:
    """Import a registered model as `fewtune.model.import_model.import_model` does.

    An optional step is left out if it raises, or if native code crashes in it.

    Parameters
    ----------
    name, models_directory, threads, options, directory
        See `import_model`.
    target : str
        As JSON.

    Raises
    ------
    InputError
        See `import_model`; or if native code crashes without any optional step.
    MachineError
        If the system kills the import because memory ran out.
    VerificationError
        See `import_model`.
    """
    job = {
        "name": name,
        "models": str(models_directory.absolute()),
        "target": target,
        "threads": threads,
        "options": options.model_dump(mode="json"),
        "directory": str(directory.absolute()),
    }
    run_apart(f"{__name__}:import_here", job)
    return ImportReport.read(directory)


def import_here(job: dict[str, Any]) -> None:
    """Do the job of `import_apart` in this process."""
    import_model(
        job["name"],
        Path(job["models"]),
        target_from_json(job["target"]),
        job["threads"],
        ImportOptions.model_validate(job["options"]),
        Path(job["directory"]),
        left_out=job[LEFT_OUT],
    )

"""Imports a model in a child process, which TVM or onnxruntime may crash."""

from __future__ import annotations

from pathlib import Path

from fewtune.artifacts import ImportReport
from fewtune.model.import_model import imported_model
from fewtune.model.import_options import ImportOptions
from fewtune.process.apart import Job, run_apart
from fewtune.runtime.target import target_from_json


class ImportJob(Job):
    """The arguments of `import_model`; the target is JSON."""

    name: str
    models: Path
    target: str
    threads: int
    options: ImportOptions
    directory: Path

    def run(self) -> None:
        """Import the model in this process."""
        imported = imported_model(
            self.name,
            self.models,
            target_from_json(self.target),
            self.threads,
            self.options,
            self.left_out,
        )
        imported.write(self.directory)


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

    Raises
    ------
    InputError
        See `import_model`; or if native code crashes without any optional step.
    MachineError
        If the system kills the import because memory ran out.
    VerificationError
        See `import_model`.
    """
    run_apart(
        ImportJob(
            name=name,
            models=models_directory.absolute(),
            target=target,
            threads=threads,
            options=options,
            directory=directory.absolute(),
        )
    )
    return ImportReport.read(directory)

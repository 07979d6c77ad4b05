"""Compiles a model in a child process, which TVM or LLVM may crash."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from fewtune.artifacts import CompileReport, Fingerprint
from fewtune.compile.compile import compile_model
from fewtune.compile.options import CompileOptions
from fewtune.model.import_model import read_lowered
from fewtune.process.apart import run_apart
from fewtune.process.job import Job
from fewtune.task.extract import read_tasks

_LOG = logging.getLogger(__name__)


class CompileJob(Job):
    """The arguments of `compile_apart`, with absolute paths."""

    imported: Path
    tasks: Path
    shared: Path
    fingerprint: Path
    options: CompileOptions
    directory: Path
    model: str
    strategy: str

    def run(self) -> list[str]:
        """Compile the model in this process; return the lines for ``say``."""
        said: list[str] = []
        compile_model(
            read_lowered(self.imported),
            read_tasks(self.tasks),
            self.shared,
            self.imported,
            Fingerprint.read(self.fingerprint),
            self.options,
            self.directory,
            model=self.model,
            strategy=self.strategy,
            say=said.append,
            left_out=self.left_out,
        )
        return said


def compile_apart(
    import_directory: Path,
    task_directory: Path,
    share_directory: Path,
    fingerprint: Path,
    options: CompileOptions,
    directory: Path,
    *,
    model: str,
    strategy: str,
    say: Callable[[str], None] = _LOG.info,
    meanwhile: Callable[[], object] | None = None,
) -> CompileReport:
    """Compile a model as `fewtune.compile.compile.compile_model` does.

    Rewrites and schedules are left out if they raise, or if native code crashes on them.

    Parameters
    ----------
    import_directory, task_directory, share_directory : Path
        Folders of the imported model, of its tasks, and of the tuning log of all tasks.
    fingerprint : Path
        The file of the machine's fingerprint.
    options, directory, model, strategy, say
        See `compile_model`; ``say`` is called at the end.
    meanwhile : callable, optional
        Called while the child compiles, mostly on one core.

    Raises
    ------
    InputError
        If native code crashes whatever is left out.
    MachineError
        See `compile_model`; or if the system kills the compilation because memory ran out.
    VerificationError
        See `compile_model`.
    """
    job = CompileJob(
        imported=import_directory.absolute(),
        tasks=task_directory.absolute(),
        shared=share_directory.absolute(),
        fingerprint=fingerprint.absolute(),
        options=options,
        directory=directory.absolute(),
        model=model,
        strategy=strategy,
    )
    for line in run_apart(job, meanwhile):
        say(line)
    return CompileReport.read(directory)

"""Compiles a model in a child process, which TVM or LLVM may crash."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

from fewtune.artifacts import CompileReport, Fingerprint
from fewtune.compile.compile import TunedParts, compile_model
from fewtune.compile.options import CompileOptions
from fewtune.model.import_model import read_lowered
from fewtune.process.apart import Job, run_apart
from fewtune.task.extract import read_tasks

# A child process may have another working folder.
AbsolutePath = Annotated[Path, AfterValidator(Path.absolute)]
_LOG = logging.getLogger(__name__)


class CompileJob(Job):
    """What `compile_apart` compiles: the folders of a result's steps, and where its output goes."""

    imported: AbsolutePath
    tasks: AbsolutePath
    shared: AbsolutePath
    fingerprint: AbsolutePath
    options: CompileOptions
    directory: AbsolutePath
    model: str
    strategy: str

    def run(self) -> list[str]:
        """Compile the model in this process; return the lines for ``say``."""
        said: list[str] = []
        parts = TunedParts(
            self.model,
            self.strategy,
            read_lowered(self.imported),
            read_tasks(self.tasks),
            self.imported,
            self.shared,
        )
        fingerprint = Fingerprint.read(self.fingerprint)
        compile_model(
            parts,
            fingerprint,
            self.options,
            self.directory,
            say=said.append,
            left_out=self.left_out,
        )
        return said


def compile_apart(
    job: CompileJob,
    say: Callable[[str], None] = _LOG.info,
    meanwhile: Callable[[], object] | None = None,
) -> CompileReport:
    """Compile a model as `fewtune.compile.compile.compile_model` does.

    Rewrites and schedules are left out if they raise, or if native code crashes on them.

    Parameters
    ----------
    job : CompileJob
    say : callable
        Gets the lines of `compile_model` at the end.
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
    for line in run_apart(job, meanwhile):
        say(line)
    return CompileReport.read(job.directory)

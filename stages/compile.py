"""Stage compile: apply the tuning log, build and export the library, verify its outputs."""

from __future__ import annotations

from pathlib import Path

from fewtune.compile.compile import CompileJob, compile_apart
from fewtune.progress.progress import Steps
from fewtune.stages.command import Stage, main
from fewtune.stages.params import load_section
from fewtune.util.files import whole_directory


def job_of(stage: Stage, shared: Path, directory: Path) -> CompileJob:
    """The job that compiles a log of schedules into a folder."""
    return CompileJob(
        imported=stage.places.imported(stage.model),
        tasks=stage.places.tasks(stage.model),
        shared=shared,
        fingerprint=stage.places.fingerprint,
        options=load_section("compile", model=stage.model),
        directory=directory,
        model=stage.model,
        strategy=stage.strategy,
    )


def run(stage: Stage) -> None:
    """Build the tuned library and compare its outputs with onnxruntime's."""
    with whole_directory(stage.places.compiled(*stage.of)) as directory:
        job = job_of(stage, stage.places.shared(*stage.of), directory)
        with Steps(f"{stage.model}: library") as tell:
            report = compile_apart(job, tell=tell)
    stage.say(
        f"{report.scheduled_from_log} kernels from the log, "
        f"{report.scheduled_by_default} by default, {len(report.unscheduled)} unscheduled, "
        f"{report.allowances:.2g} of the allowance used, "
        f"relative error {report.max_relative_error:.1e}"
        + (f"; {report.exceptions_text}" if report.exceptions_text else "")
    )


if __name__ == "__main__":
    main("compile", run, "model", "strategy")

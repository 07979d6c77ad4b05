"""Stage compile: apply the tuning log, build and export the library, verify its outputs."""

from __future__ import annotations

from pathlib import Path

from fewtune.compile.compile_apart import CompileJob, compile_apart
from fewtune.stages.command import main, say
from fewtune.stages.params import load_section
from fewtune.stages.paths import Places
from fewtune.util.files import whole_directory


def job_of(model: str, strategy: str, shared: Path, directory: Path) -> CompileJob:
    """The job that compiles a log of schedules into a folder."""
    places = Places()
    return CompileJob(
        imported=places.imported(model),
        tasks=places.tasks(model),
        shared=shared,
        fingerprint=places.fingerprint,
        options=load_section("compile", model=model),
        directory=directory,
        model=model,
        strategy=strategy,
    )


def run(model: str, strategy: str) -> None:
    """Build the tuned library and compare its outputs with onnxruntime's."""
    places = Places()
    with whole_directory(places.compiled(model, strategy)) as directory:
        job = job_of(model, strategy, places.shared(model, strategy), directory)
        report = compile_apart(job, say)
    say(
        f"{model} ({strategy}): {report.scheduled_from_log} kernels from the log, "
        f"{report.scheduled_by_default} by default, {len(report.unscheduled)} unscheduled, "
        f"{report.allowances:.2g} of the allowance used, "
        f"relative error {report.max_relative_error:.1e}"
        + (f"; {report.exceptions_text}" if report.exceptions_text else "")
    )


if __name__ == "__main__":
    main("compile", run)

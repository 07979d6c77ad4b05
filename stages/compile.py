"""Stage compile: apply the tuning log, build and export the library, verify its outputs."""

from __future__ import annotations

from fewtune.compile.compile_apart import CompileJob, compile_apart
from fewtune.stages.command import main, say
from fewtune.stages.params import load_section
from fewtune.stages.paths import Places
from fewtune.util.files import whole_directory


def run(model: str, strategy: str) -> None:
    """Build the tuned library and compare its outputs with onnxruntime's."""
    options = load_section("compile", model=model)
    places = Places()
    with whole_directory(places.compiled(model, strategy)) as directory:
        job = CompileJob(
            imported=places.imported(model),
            tasks=places.tasks(model),
            shared=places.shared(model, strategy),
            fingerprint=places.fingerprint,
            options=options,
            directory=directory,
            model=model,
            strategy=strategy,
        )
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

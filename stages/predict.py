"""Stage predict: a schedule for every task before anything is measured, and a library of them."""

from __future__ import annotations

from collections import Counter

from fewtune.compile.compile import compile_apart
from fewtune.prediction.predict import FIRST_LIBRARY, PredictJob, predict_apart
from fewtune.progress.progress import Steps
from fewtune.stages.command import Stage, main
from fewtune.stages.compile import job_of
from fewtune.util.files import whole_directory


def run(stage: Stage) -> None:
    """Predict, build and check schedules; compile the first library and verify it."""
    output = stage.places.predicted(*stage.of)
    with whole_directory(output) as directory:
        job = PredictJob(
            tasks=stage.places.tasks(stage.model),
            fingerprint=stage.places.fingerprint,
            options=stage.options,
            directory=directory,
            model=stage.model,
            strategy=stage.strategy,
            bank=stage.places.bank(stage.strategy),
        )
        report = predict_apart(job)
        library = directory / FIRST_LIBRARY
        library.mkdir()
        with Steps(f"{stage.model}: first library") as tell:
            compiled = compile_apart(job_of(stage, directory, library), tell=tell)
    counts = Counter(line.status for line in report.tasks)
    stage.say(
        ", ".join(f"{count} {status}" for status, count in counts.items())
        + f"; a library is ready after {report.predicting_s + compiled.compile_s:.1f} s: "
        f"{output / FIRST_LIBRARY / compiled.library}"
        + (f"; {compiled.exceptions_text}" if compiled.exceptions_text else "")
    )
    if report.prediction.warning:
        stage.say(f"warning: {report.prediction.warning}")


if __name__ == "__main__":
    main("predict", run, "model", "strategy")

"""Stage predict: a schedule for every task before anything is measured, and a library of them."""

from __future__ import annotations

from collections import Counter

from fewtune.compile.compile_apart import compile_apart
from fewtune.prediction.predict_apart import FIRST_LIBRARY, PredictJob, predict_apart
from fewtune.stages.command import main, say
from fewtune.stages.compile import job_of
from fewtune.stages.params import load_section
from fewtune.stages.paths import Places
from fewtune.util.files import whole_directory


def run(model: str, strategy: str) -> None:
    """Predict, build and check schedules; compile the first library and verify it."""
    options = load_section("predict", model=model)
    places = Places()
    with whole_directory(places.predicted(model, strategy)) as directory:
        job = PredictJob(
            tasks=places.tasks(model),
            fingerprint=places.fingerprint,
            options=options,
            directory=directory,
            model=model,
            strategy=strategy,
            bank=places.bank(strategy),
        )
        report = predict_apart(job)
        library = directory / FIRST_LIBRARY
        library.mkdir()
        compiled = compile_apart(job_of(model, strategy, directory, library), say)
    counts = Counter(line.status for line in report.tasks)
    say(
        f"{model} ({strategy}): "
        + ", ".join(f"{count} {status}" for status, count in counts.items())
        + f"; a library is ready after {report.predicting_s + compiled.compile_s:.1f} s: "
        f"{places.predicted(model, strategy) / FIRST_LIBRARY / compiled.library}"
    )
    if report.prediction.warning:
        say(f"{model} ({strategy}): warning: {report.prediction.warning}")


if __name__ == "__main__":
    main("predict", run)

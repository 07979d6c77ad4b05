"""Stage share_schedules: give every task that was not tuned a schedule from elsewhere."""

from __future__ import annotations

from collections import Counter

from fewtune.artifacts import Fingerprint, Selection, ShareReport, TuneReport
from fewtune.measure.device import device_of
from fewtune.oneshot.predict_apart import PredictJob, predict_apart
from fewtune.sharing.share import share_schedules
from fewtune.stages.command import journalled, main, say
from fewtune.stages.params import load_section
from fewtune.stages.paths import Places
from fewtune.task.extract import read_tasks
from fewtune.util.files import whole_directory


def run(model: str, strategy: str) -> None:
    """Measure what donors give; keep the best that beats the default."""
    options = load_section("share_schedules", model=model)
    places = Places()
    fingerprint = Fingerprint.read(places.fingerprint)
    if TuneReport.read(places.tuned(model, strategy)).is_predicted:
        with whole_directory(places.shared(model, strategy)) as directory:
            job = PredictJob(
                task_directory=places.tasks(model),
                select_directory=places.selected(model, strategy),
                fingerprint=places.fingerprint,
                options=options,
                directory=directory,
                bank_directory=places.bank(strategy),
            )
            report = predict_apart(job)
        _say_result(model, strategy, report)
        return
    output = places.shared(model, strategy)
    with journalled(fingerprint, "share_schedules", model, strategy, output) as kept:
        report = share_schedules(
            read_tasks(places.tasks(model)),
            Selection.read(places.selected(model, strategy)),
            places.tuned(model, strategy),
            fingerprint,
            options,
            *kept,
            bank_directory=places.bank(strategy),
            model_directory=places.tasks(model),
            run=device_of(fingerprint).runner,
        )
    _say_result(model, strategy, report)


def _say_result(model: str, strategy: str, report: ShareReport) -> None:
    statuses = Counter(task.status for task in report.tasks)
    ended = ", ".join(f"{count} {status}" for status, count in statuses.items()) or "no dependents"
    say(f"{model} ({strategy}): {ended}; {report.trials} trials in {report.sharing_s:.1f} s")
    if report.prediction is not None and report.prediction.warning:
        say(f"{model} ({strategy}): warning: {report.prediction.warning}")


if __name__ == "__main__":
    main("share_schedules", run)

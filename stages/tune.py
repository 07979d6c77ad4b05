"""Stage tune: search schedules of the representatives, measuring on the device."""

from __future__ import annotations

from fewtune.artifacts import Fingerprint, Selection, failures_by_cause
from fewtune.measure.device import device_of
from fewtune.stages.command import journalled, main, say
from fewtune.stages.params import load_section
from fewtune.stages.paths import Places
from fewtune.task.extract import read_tasks
from fewtune.tuning.tune import empty_report, tune
from fewtune.util.files import whole_directory


def run(model: str, strategy: str) -> None:
    """Tune the selected tasks; a run that was killed goes on from its journal."""
    options = load_section("tune", model=model)
    places = Places()
    fingerprint = Fingerprint.read(places.fingerprint)
    tasks = read_tasks(places.tasks(model))
    selection = Selection.read(places.selected(model, strategy))
    if options.predicts(selection.method):
        with whole_directory(places.tuned(model, strategy)) as directory:
            empty_report(selection, fingerprint, options, directory)
        say(f"{model} ({strategy}): nothing is measured, schedules are to be predicted")
        return
    output = places.tuned(model, strategy)
    with journalled(fingerprint, "tune", model, strategy, output) as kept:
        run = device_of(fingerprint).runner
        report = tune(tasks, selection, fingerprint, options, *kept, run=run)
    if report.stopped_by == "nothing_to_tune":
        say(f"{model} ({strategy}): nothing to search, schedules are known")
        return
    say(
        f"{model} ({strategy}): {report.trials} trials in {report.tuning_s:.0f} s, "
        f"stopped by {report.stopped_by}"
    )
    failures = failures_by_cause(report.tasks)
    if failures:
        counts = ", ".join(f"{cause} {count}" for cause, count in failures.items())
        say(f"{model} ({strategy}): failed candidates: {counts}")
    for task in report.tasks:
        if task.status != "tuned":
            say(f"{model} ({strategy}): {task.task}: {task.status} {task.note}".rstrip())


if __name__ == "__main__":
    main("tune", run)

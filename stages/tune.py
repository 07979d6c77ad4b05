"""Stage tune: search schedules of the representatives, measuring on the device."""

from __future__ import annotations

from fewtune.artifacts import Selection, failures_by_cause
from fewtune.stages.command import Stage, main
from fewtune.task.extract import read_tasks
from fewtune.tuning.tune import tune


def run(stage: Stage) -> None:
    """Tune the selected tasks; a run that was killed goes on from its journal."""
    options, fingerprint = stage.options, stage.fingerprint
    selection = Selection.read(stage.places.selected(*stage.of))
    output = stage.places.tuned(*stage.of)
    tasks = read_tasks(stage.places.tasks(stage.model))
    with stage.journalled(output, measures=not options.predicts(selection.method)) as kept:
        report = tune(tasks, selection, fingerprint, options, *kept)
    if report.stopped_by in ("predicted", "nothing_to_tune"):
        stage.say("nothing to search, schedules are predicted")
        return
    stage.say(f"{report.trials} trials in {report.tuning_s:.0f} s, stopped by {report.stopped_by}")
    if failures := failures_by_cause(report.tasks):
        counts = ", ".join(f"{cause} {count}" for cause, count in failures.items())
        stage.say(f"failed candidates: {counts}")
    for task in report.tasks:
        if task.status != "tuned":
            stage.say(f"{task.task}: {task.status} {task.note}".rstrip())


if __name__ == "__main__":
    main("tune", run, "model", "strategy")

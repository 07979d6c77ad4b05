"""Stage share_schedules: try the schedules that tasks can take from elsewhere."""

from __future__ import annotations

from collections import Counter

from fewtune.artifacts import Selection, TuneReport
from fewtune.model_check.report import at_most_full
from fewtune.sharing.share import share_schedules
from fewtune.stages.command import Stage, main
from fewtune.task.extract import read_tasks


def run(stage: Stage) -> None:
    """Let contenders of all tasks take turns; a run that was killed goes on."""
    places = stage.places
    selection = Selection.read(places.selected(*stage.of))
    tuned = TuneReport.read(places.tuned(*stage.of))
    with stage.journalled(places.shared(*stage.of), measures=not tuned.is_predicted) as kept:
        report = share_schedules(
            read_tasks(places.tasks(stage.model)),
            selection,
            places.predicted(*stage.of),
            places.tuned(*stage.of),
            stage.fingerprint,
            at_most_full(stage.options, selection, tuned),
            *kept,
            bank_directory=places.bank(stage.strategy),
            model_directory=places.tasks(stage.model),
        )
    statuses = Counter(task.status for task in report.tasks)
    ended = ", ".join(f"{count} {status}" for status, count in statuses.items()) or "no task"
    stage.say(f"{ended}; {report.trials} trials in {report.sharing_s:.1f} s")


if __name__ == "__main__":
    main("share_schedules", run, "model", "strategy")

"""Stage share_schedules: try the schedules that tasks can take from elsewhere."""

from __future__ import annotations

from collections import Counter

from fewtune.artifacts import Fingerprint, Selection, TuneReport
from fewtune.measure.device import device_of
from fewtune.sharing.share import share_schedules, take_predicted
from fewtune.stages.command import journalled, main, say
from fewtune.stages.params import load_section
from fewtune.stages.paths import Places
from fewtune.task.extract import read_tasks
from fewtune.util.files import whole_directory


def run(model: str, strategy: str) -> None:
    """Let contenders of all tasks take turns; a run that was killed goes on."""
    options = load_section("share_schedules", model=model)
    places = Places()
    fingerprint = Fingerprint.read(places.fingerprint)
    selection = Selection.read(places.selected(model, strategy))
    predicted, output = places.predicted(model, strategy), places.shared(model, strategy)
    if TuneReport.read(places.tuned(model, strategy)).is_predicted:
        with whole_directory(output) as directory:
            report = take_predicted(selection, predicted, directory)
    else:
        with journalled(fingerprint, "share_schedules", model, strategy, output) as kept:
            report = share_schedules(
                read_tasks(places.tasks(model)),
                selection,
                predicted,
                places.tuned(model, strategy),
                fingerprint,
                options,
                *kept,
                bank_directory=places.bank(strategy),
                model_directory=places.tasks(model),
                run=device_of(fingerprint).runner,
            )
    statuses = Counter(task.status for task in report.tasks)
    ended = ", ".join(f"{count} {status}" for status, count in statuses.items()) or "no task"
    say(f"{model} ({strategy}): {ended}; {report.trials} trials in {report.sharing_s:.1f} s")


if __name__ == "__main__":
    main("share_schedules", run)

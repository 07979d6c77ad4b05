"""Stage share_schedules: give every task that was not tuned a schedule from elsewhere."""

from __future__ import annotations

import shutil
from collections import Counter

from fewtune.artifacts import Fingerprint, Selection
from fewtune.sharing.share import share_schedules
from fewtune.task.extract import read_tasks
from fewtune.util.files import whole_directory
from stages.command import main, measuring, say
from stages.params import load_section
from stages.paths import Places


def run(model: str, strategy: str) -> None:
    """Measure what donors give, ask others, refine; keep the best that beats the default."""
    options = load_section("share_schedules")
    places = Places()
    fingerprint = Fingerprint.read(places.fingerprint)
    tasks = read_tasks(places.tasks(model))
    selection = Selection.read(places.selected(model, strategy))
    journal = places.journal(model, strategy, "share_schedules")
    with (
        measuring(fingerprint, "share_schedules", model, strategy),
        whole_directory(places.shared(model, strategy)) as directory,
    ):
        report = share_schedules(
            tasks,
            selection,
            places.tuned(model, strategy),
            fingerprint,
            options,
            journal,
            directory,
            places.progress(model, strategy, "share_schedules"),
            bank_directory=places.bank(strategy),
            model_directory=places.tasks(model),
        )
    # The journal is for a run that was killed; left here, a forced run would measure nothing.
    shutil.rmtree(journal, ignore_errors=True)
    statuses = Counter(task.status for task in report.tasks)
    ended = ", ".join(f"{count} {status}" for status, count in statuses.items()) or "no dependents"
    say(f"{model} ({strategy}): {ended}; {report.trials} trials in {report.sharing_s:.0f} s")


if __name__ == "__main__":
    main("share_schedules", run)

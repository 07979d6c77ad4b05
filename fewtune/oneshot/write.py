"""The log and the reports of schedules that nobody measured.

They are marked as predicted, so that no bank, merged log or later search takes them for measured.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from fewtune.artifacts import (
    Curve,
    Fingerprint,
    Prediction,
    Selection,
    ShareReport,
    ShareRound,
    TuneReport,
)
from fewtune.oneshot.predict import Chosen
from fewtune.oneshot.worth import with_tasks
from fewtune.options import TuneOptions
from fewtune.runtime.target import target_from_json
from fewtune.storage.database import write_database
from fewtune.storage.log_archive import log_info
from fewtune.task.extract import Task

_RULE = (
    "each task takes the schedule that is rated best, or the bank's where that holds this very "
    "task; nothing is measured"
)


def empty_report(
    selection: Selection, fingerprint: Fingerprint, options: TuneOptions, directory: Path
) -> TuneReport:
    """Write the tuning log of a run that measures nothing: it is empty.

    Parameters
    ----------
    selection : Selection
    fingerprint : Fingerprint
    options : TuneOptions
    directory : Path
        Gets what `fewtune.tuning.tune.tune` writes there.
    """
    log_info(fingerprint).model_copy(update={"predicted": True, "checked": False}).write(directory)
    write_database(directory, {}, {}, target_from_json(fingerprint.target))
    Curve(points=[]).write(directory)
    report = TuneReport(
        model=selection.model,
        strategy=selection.strategy,
        tasks=[],
        trials=0,
        trials_per_task=options.trials_per_task,
        tuning_s=0.0,
        search_s=0.0,
        build_s=0.0,
        run_s=0.0,
        model_update_s=0.0,
        stopped_by="predicted",
    )
    report.write(directory)
    return report


def write_prediction(  # noqa: PLR0913 (what a stage reads and writes)
    tasks: list[Task],
    selection: Selection,
    fingerprint: Fingerprint,
    chosen: Mapping[str, Chosen],
    prediction: Prediction,
    began_s: float,
    directory: Path,
) -> ShareReport:
    """Write the log and the report of predicted schedules.

    Parameters
    ----------
    tasks : list of Task
    selection : Selection
    fingerprint : Fingerprint
    chosen : mapping of Chosen
        By task.
    prediction : Prediction
    began_s : float
        `time.perf_counter` where predicting began.
    directory : Path
        Gets what `fewtune.sharing.share.share_schedules` writes there.
    """
    results = [chosen[task.info.name] for task in tasks if task.info.name in chosen]
    log_info(fingerprint).model_copy(update={"predicted": True, "checked": False}).write(directory)
    found = {each.line.task: [each.trial] for each in results if each.trial is not None}
    modules = {task.info.name: task.mod for task in tasks if task.info.name in found}
    write_database(directory, modules, found, target_from_json(fingerprint.target))
    Curve(points=[]).write(directory)
    spent_s = round(time.perf_counter() - began_s, 3)
    lines = [each.line for each in results]
    report = ShareReport(
        model=selection.model,
        strategy=selection.strategy,
        tasks=lines,
        rounds=[_round(len(found), spent_s)],
        trials=0,
        sharing_s=spent_s,
        stopped_by="predicted",
        prediction=with_tasks(prediction, sum(each.points for each in results), lines),
    )
    report.write(directory)
    return report


def _round(tasks: int, spent_s: float) -> ShareRound:
    return ShareRound(
        name="prediction",
        rule=_RULE,
        tasks=tasks,
        trials=0,
        spent_s=spent_s,
        search_s=spent_s,
        build_s=0.0,
        run_s=0.0,
        model_update_s=0.0,
        gained_ms=0.0,
    )

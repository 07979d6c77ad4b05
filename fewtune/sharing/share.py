"""Share schedules: what was predicted, tuned, or banked is tried where it may be faster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from fewtune.artifacts import (
    CompileReport,
    Curve,
    Fingerprint,
    LogInfo,
    PredictedTask,
    PredictReport,
    Selection,
    SharedTask,
    ShareReport,
    ShareStatus,
    TuneReport,
)
from fewtune.bank.bank import Bank
from fewtune.measure.device import device_of
from fewtune.options import ShareOptions, TuneOptions
from fewtune.prediction.predict import FIRST_LIBRARY
from fewtune.predictor.features import weights_outgrow_cache
from fewtune.schedule.space.design_space import point_from_json
from fewtune.schedule.space.transfer import Donation
from fewtune.search.warm_start import measured_trials
from fewtune.sharing.session import ShareJob
from fewtune.storage.database import log_info, read_database, require_own
from fewtune.task.extract import Task
from fewtune.trial.trial import Trial
from fewtune.tuning.job import measured
from fewtune.tuning.state import RunState, Start, TaskState

# The part of its time that a search leaves to be saved.
_SEARCHED = 0.05


def share_schedules(  # noqa: PLR0913 (what a stage reads and writes)
    tasks: list[Task],
    selection: Selection,
    predict_directory: Path,
    tune_directory: Path,
    fingerprint: Fingerprint,
    options: ShareOptions,
    journal_directory: Path,
    directory: Path,
    bank_directory: Path,
    model_directory: Path,
) -> ShareReport:
    """Give every task the fastest schedule that is found; write the log of all.

    A strategy that predicts measures nothing: each task keeps its predicted schedule.

    Parameters
    ----------
    tasks : list of Task
    selection : Selection
    predict_directory, tune_directory : Path
        Output of those stages.
    fingerprint : Fingerprint
    options : ShareOptions
    journal_directory : Path
        Scratch that outlives a kill.
    directory : Path
        Gets ``share.json``, ``curve.json`` and TVM's two database files.
    bank_directory : Path
        Folder of a bank.
    model_directory : Path
        The tasks' folder, with the model's skeleton, to measure in the model.

    Raises
    ------
    FewtuneError
        What stopped the measuring, in one line.
    """
    tuned = TuneReport.read(tune_directory)
    predicted = PredictReport.read(predict_directory)
    require_own(tune_directory, fingerprint)
    # Full tuning starts from nothing.
    lines = {} if selection.method == "all" else {line.task: line for line in predicted.tasks}
    donors = _donors(selection, bank_directory, fingerprint)
    # Where nothing is measured, tasks that were set aside keep what was predicted, too.
    named = {*donors, *(lines if tuned.is_predicted else ())}
    contesting = sorted((t for t in tasks if t.info.name in named), key=lambda t: t.info.name)
    first = measured_trials(read_database(predict_directory), contesting)
    known = measured_trials(read_database(tune_directory), contesting)
    crashed = {line.task for line in tuned.tasks if line.status == "crashed"}
    starts = {}
    for task in contesting:
        name = task.info.name
        start = _start(lines.get(name), first[name], known[name], name in crashed)
        starts[name] = replace(start, donors=donors.get(name, {}), serves=task.info.share)
    job = ShareJob(
        tasks=contesting,
        fingerprint=fingerprint,
        options=_tune_options(options, tuned),
        journals=journal_directory,
        starts=starts,
        finals=options.finals,
        proposes=selection.method != "all",
        model=model_directory,
        cold_weights=device_of(fingerprint).can.shared_cores and weights_outgrow_cache(tasks),
    )
    state = job.state(()) if tuned.is_predicted else measured(job)
    states = [*state.tasks.values()]
    # What no round has measured, here or while tuning, is still as it was predicted.
    is_predicted = bool(lines) and not any(each.gains or each.start.trials for each in states)
    info = LogInfo.read(predict_directory) if is_predicted else log_info(fingerprint)
    state.write(info, directory)
    _curve(predicted, predict_directory, tuned, state).write(directory)
    report = ShareReport(
        model=selection.model,
        strategy=selection.strategy,
        tasks=[
            *(task_line(each, lines.get(each.name)) for each in states if not each.start.trials),
            *(_as_twin(name, twin) for name, twin in selection.twins.items()),
        ],
        representatives=[each.report() for each in states if each.start.trials],
        rounds=[*state.rounds.values()],
        note=state.note,
        trials=state.trials,
        sharing_s=round(state.elapsed_s, 3),
        stolen_s=round(state.stolen_s, 3),
        stopped_by="predicted" if tuned.is_predicted else state.stopped_by,
        prediction=predicted.prediction if tuned.is_predicted else None,
    )
    report.write(directory)
    return report


def _tune_options(options: ShareOptions, tuned: TuneReport) -> TuneOptions:
    """The options of the session, with the budget that tuning left."""
    given = options.model_dump(include={"least_gain", "predictor", "seed"})
    if options.budget_s is not None:
        given["budget_s"] = max(options.budget_s - tuned.tuning_s, 1e-3)
    return TuneOptions(batch_size=options.trials_per_task, **given)


def _donors(
    selection: Selection, bank_directory: Path, fingerprint: Fingerprint
) -> dict[str, dict[str, list[Donation]]]:
    """Every task that takes part, with its donors; what those of a bank give."""
    found: dict[str, dict[str, list[Donation]]] = {n: {} for n in selection.representatives}
    found |= {name: {each: []} for name, each in selection.dependents.items()}
    if selection.banked:
        require_own(bank_directory, fingerprint)
        bank = Bank.read(bank_directory)
        for name, donors in selection.banked.items():
            found[name] = {each.name: bank.donations(each.workload) for each in donors}
    return found


def _start(
    line: PredictedTask | None, first: list[Trial], known: list[Trial], is_crashed: bool
) -> Start:
    """What was predicted, and what was measured, of a task."""
    start = Start(spread=0.0)
    if line is not None:
        points = [point_from_json(each) for each in line.promising]
        start = Start(trial=next(iter(first), None), spread=line.spread, promising=points)
    # A default schedule has decided nothing.
    defaults = [each.key for each in known if not each.trace[1]]
    if len(known) == len(defaults):
        return start
    return replace(
        start,
        spread=min(start.spread, _SEARCHED),
        trials=known,
        default_key=next(iter(defaults), None),
        finished="crashed while it was tuned" if is_crashed else "",
    )


def _curve(
    predicted: PredictReport, predict_directory: Path, tuned: TuneReport, state: RunState
) -> Curve:
    """The model's latency over the seconds since the import, from the first library on."""
    library, before_s = predict_directory / FIRST_LIBRARY, predicted.predicting_s
    if (library / CompileReport.file_name).is_file():
        before_s += CompileReport.read(library).compile_s
    points = []
    for place, point in enumerate(state.curve):
        elapsed_s = before_s + (tuned.tuning_s + point.elapsed_s if place else 0.0)
        trials = tuned.trials + (point.trials if place else 0)
        points.append(point.model_copy(update={"elapsed_s": round(elapsed_s, 3), "trials": trials}))
    return Curve(points=points)


def _as_twin(name: str, twin: str) -> SharedTask:
    """The result of a task of another shape: the library has its twin's schedule, moved."""
    untried: dict[str, Any] = {"trials": 0, "failures": {}, "default_ms": None, "best_ms": None}
    return SharedTask(task=name, status="shared", donor=twin, note=f"as {twin}", **untried)


def task_line(known: TaskState, predicted: PredictedTask | None = None) -> SharedTask:
    """The result of one task; of one never measured, what was predicted."""
    best = known.incumbent
    donor = known.donors.get(best.key) if best is not None else None
    status: ShareStatus = "predicted"
    if best is None or best.key == known.default_key:
        status = "default"
    elif best.key in known.donors:
        status = "searched" if donor is None else "shared"
    figures = known.report().model_dump()
    if predicted is not None and not (known.gains or known.crashed or known.donors):
        status = predicted.status
        donor = predicted.origin if status == "known" else None
        figures["note"] = predicted.note
        if predicted.known_ms is not None:
            figures["best_ms"] = predicted.known_ms
    return SharedTask(**figures | {"status": status, "donor": donor})

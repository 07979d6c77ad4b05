"""Share schedules: what was predicted, tuned, or banked is tried where it may be faster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fewtune.artifacts import (
    CompileReport,
    Curve,
    CurvePoint,
    Fingerprint,
    LogInfo,
    PredictedTask,
    PredictReport,
    Selection,
    SharedTask,
    ShareReport,
    ShareRound,
    ShareStatus,
    TuneReport,
)
from fewtune.bank.bank import Bank
from fewtune.errors import InputError
from fewtune.measure.device import device_of
from fewtune.options import ShareOptions
from fewtune.prediction.predict_apart import FIRST_LIBRARY
from fewtune.predictor import chosen_digest
from fewtune.runtime.target import target_from_json
from fewtune.runtime.tvm import ms
from fewtune.schedule.space.design_space import point_from_json, sampling
from fewtune.search.warm_start import measured_trials
from fewtune.sharing.session import ShareJob, Start
from fewtune.storage.database import (
    RECORDS,
    best_trials,
    log_info,
    read_database,
    require_own,
    write_database,
)
from fewtune.task.extract import Task
from fewtune.timing.timer import weights_outgrow_cache
from fewtune.trial.phases import Phases
from fewtune.trial.trial import Trial
from fewtune.tuning.child_process import measured
from fewtune.tuning.final import Final
from fewtune.tuning.job import Runner
from fewtune.tuning.run_state import RunState
from fewtune.tuning.task_state import PriorResult, TaskState
from fewtune.tuning.wrong_schedules import write_wrong_schedules
from fewtune.util.files import file_sha256


def share_schedules(  # noqa: PLR0913 (what a stage reads and writes)
    tasks: list[Task],
    selection: Selection,
    predict_directory: Path,
    tune_directory: Path,
    fingerprint: Fingerprint,
    options: ShareOptions,
    journal_directory: Path,
    directory: Path,
    bank_directory: Path | None = None,
    model_directory: Path | None = None,
    run: Runner | None = None,
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
    bank_directory : Path, optional
        Folder of a bank; needed if the selection takes schedules from it.
    model_directory : Path, optional
        The tasks' folder, with the model's skeleton, to measure in the model.
    run : callable, optional
        Runs the work; `fewtune.tuning.child_process.supervise` unless given.

    Raises
    ------
    FewtuneError
        What stopped the measuring, in one line.
    """
    by_name = {task.info.name: task for task in tasks}
    tuned = TuneReport.read(tune_directory)
    predicted = PredictReport.read(predict_directory)
    require_own(tune_directory, fingerprint)
    if not (tuned.is_predicted or LogInfo.read(tune_directory).checked):
        raise InputError(
            f"{tune_directory} is a log whose outputs were not compared: tune the model again"
        )
    if options.budget_s is not None:
        left_s = max(options.budget_s - tuned.tuning_s, 1e-3)
        options = options.model_copy(update={"budget_s": left_s})
    database = read_database(tune_directory)
    bank = None
    if bank_directory is not None:
        require_own(bank_directory, fingerprint)
        bank = Bank.read(bank_directory)
    earlier = _earlier(tuned, database, by_name)
    takers = {n: each for n, each in takers_of(selection).items() if n not in earlier}
    if tuned.is_predicted:
        # Tasks that were set aside keep what was predicted, too.
        takers = {line.task: [] for line in predicted.tasks} | takers
    job = ShareJob(
        takers=takers,
        starts=_starts(predicted, read_database(predict_directory), by_name, selection),
        donations=_banked(selection, bank),
        tuned=earlier,
        options=options,
        proposes=selection.method != "all",
        model=model_directory,
        cold_weights=device_of(fingerprint).can.cold_caches and weights_outgrow_cache(tasks),
        twins=sorted(selection.twins),
    )
    named = [*job.takers, *job.tuned]
    contesting = [by_name[name] for name in named]
    events = measured(
        job,
        [] if tuned.is_predicted else contesting,
        fingerprint,
        journal_directory,
        run,
        takers=job.takers,
        logs=[file_sha256(each / RECORDS) for each in (tune_directory, predict_directory)],
        predictor=chosen_digest(job.options.predictor),
        cold_weights=job.cold_weights,
        options=job.options.model_dump(mode="json", exclude={"budget_s"}),
    )
    state = RunState(contesting, named, job.tuned, {n: s.trial for n, s in job.starts.items()})
    state.replay(events)
    # What no round has measured is still as it was predicted.
    is_predicted = bool(job.starts) and not any(each.gains for each in state.tasks.values())
    (LogInfo.read(predict_directory) if is_predicted else log_info(fingerprint)).write(directory)
    trials = {name: _published(state.tasks[name]) for name in named}
    rest = [t for n, t in by_name.items() if n not in trials and database.has_workload(t.mod)]
    everything = {**trials, **measured_trials(database, rest)}
    modules = {name: by_name[name].mod for name in sorted(everything) if everything[name]}
    write_database(
        directory,
        modules,
        {name: everything[name] for name in modules},
        target_from_json(fingerprint.target),
    )
    write_wrong_schedules(directory, state.tasks.values())
    _curve(predicted, predict_directory, tuned, state).write(directory)
    # Full tuning starts from nothing.
    lines = {line.task: line for line in predicted.tasks if line.task in job.starts}
    report = ShareReport(
        model=selection.model,
        strategy=selection.strategy,
        tasks=[
            task_line(state.tasks[name], donors, events, lines.get(name))
            for name, donors in job.takers.items()
        ],
        representatives=[state.tasks[name].report() for name in sorted(job.tuned)],
        rounds=rounds_of(events),
        note=state.note,
        trials=state.trials,
        sharing_s=round(state.elapsed_s, 3),
        stolen_s=round(state.stolen_s, 3),
        stopped_by="predicted" if tuned.is_predicted else state.stopped_by or "nothing_to_tune",
        prediction=predicted.prediction if tuned.is_predicted else None,
    )
    report.write(directory)
    return report


def takers_of(selection: Selection) -> dict[str, list[str]]:
    """Every task that may take schedules, with its donors."""
    first = {
        **{name: [] for name in [*selection.alone, *selection.representatives]},
        **{name: [donor] for name, donor in selection.dependents.items()},
        **{name: [donor.name for donor in donors] for name, donors in selection.banked.items()},
        **{name: [twin] for name, twin in selection.twins.items()},
    }
    return {name: first[name] for name in sorted(first)}


def _earlier(
    tuned: TuneReport, database: ms.database.Database, by_name: dict[str, Task]
) -> dict[str, PriorResult]:
    """The result of each tuned task that has a schedule, by its name."""
    found = {}
    for line in tuned.tasks:
        records = best_trials(database, by_name[line.task].mod, 1_000_000)
        searched = [Trial.from_record(each) for each in records if sampling(each.trace)]
        # The record of a default schedule has no sampling decisions.
        default = [Trial.from_record(each) for each in records if not sampling(each.trace)]
        if searched:
            finished = "crashed while it was tuned" if line.status == "crashed" else None
            found[line.task] = PriorResult(searched, next(iter(default), None), finished)
    return found


def _starts(
    predicted: PredictReport,
    database: ms.database.Database,
    by_name: dict[str, Task],
    selection: Selection,
) -> dict[str, Start]:
    """What was predicted of each task; full tuning starts from nothing."""
    if selection.method == "all":
        return {}
    found = {}
    for line in predicted.tasks:
        records = best_trials(database, by_name[line.task].mod, 1)
        trial = Trial.from_record(records[0]) if records and line.status != "default" else None
        points = [point_from_json(each) for each in line.promising]
        found[line.task] = Start(trial, line.spread, points)
    return found


def _banked(selection: Selection, bank: Bank | None) -> dict[str, list[Any]]:
    """The schedules of the bank's donors, by their names."""
    donors = {d.name: d for donors in selection.banked.values() for d in donors}
    if donors and bank is None:
        raise InputError("the selection takes schedules from a bank, and none is given")
    return {
        name: bank.donations(donor.workload)
        for name, donor in sorted(donors.items())
        if bank is not None
    }


def _published(state: TaskState) -> list[Trial]:
    """The log's trials of a task; what was never measured keeps its predicted schedule."""
    found = state.published()
    return found if found or state.start is None or state.crashed else [state.start]


def _curve(
    predicted: PredictReport, predict_directory: Path, tuned: TuneReport, state: RunState
) -> Curve:
    """The model's latency over the seconds since the import, from the first library on."""
    library = predict_directory / FIRST_LIBRARY
    before_s = predicted.predicting_s
    if (library / CompileReport.file_name).is_file():
        before_s += CompileReport.read(library).compile_s
    tuned_s, trials = tuned.tuning_s, tuned.trials
    return Curve(
        points=[
            CurvePoint(
                elapsed_s=round(before_s + (tuned_s + point.elapsed_s if place else 0.0), 3),
                trials=trials + (point.trials if place else 0),
                estimated_latency_ms=point.estimated_latency_ms,
            )
            for place, point in enumerate(state.curve)
        ]
    )


def task_line(
    known: TaskState,
    donors: list[str],
    events: list[dict[str, Any]],
    predicted: PredictedTask | None = None,
) -> SharedTask:
    """The result of one task, read from the journal; of one never measured, what was predicted."""
    name, best = known.task.info.name, known.incumbent
    origins = {
        Trial.from_json(entry).key: donor
        for event in events
        if event["kind"] == "round" and name in event["by_task"]
        for entry, donor in zip(event["by_task"][name], event["donors"][name], strict=True)
    }
    donor = origins.get(best.key) if best is not None else None
    status: ShareStatus
    if best is None or best.key == known.default_key:
        status = "default"
    elif donor is not None:
        status = "shared"
    else:
        status = "searched" if best.key in origins else "predicted"
    best_s = known.progress.current_s
    default_s = known.default.outcome.median_s if known.default is not None else float("inf")
    note = known.crash_note
    if predicted is not None and not known.gains and not known.crashed:
        best_s = best_s if predicted.known_ms is None else predicted.known_ms / 1e3
        status, note = predicted.status, predicted.note
        donor = predicted.origin if status == "known" else None
    return SharedTask(
        task=name,
        donors=donors,
        donor=donor,
        status=status,
        valid=sum(1 for trial in known.trials if trial.run_s),
        trials=len(known.trials),
        default_ms=_ms(default_s),
        best_ms=_ms(best_s),
        failures=known.failures(),
        note=note,
    )


def _ms(time_s: float) -> float | None:
    return time_s * 1e3 if time_s != float("inf") else None


def rounds_of(events: list[dict[str, Any]]) -> list[ShareRound]:
    """The cost and gain of the rounds, by their kind."""
    found: dict[str, ShareRound] = {}
    for event in events:
        if event["kind"] != "round":
            continue
        finals = {name: Final.from_json(each) for name, each in event["finals"].items()}
        spent, before = Phases(**event["phases"]), found.get(event["round"])
        if before is not None:
            spent.add(Phases(**{name: getattr(before, name) for name in vars(spent)}))
        contested = sum(len(final.keys) > 1 for final in finals.values())
        trials = sum(len(final.keys) - 1 for final in finals.values())
        gained_ms = sum(final.gain_s for final in finals.values()) * 1e3
        found[event["round"]] = ShareRound(
            name=event["round"],
            tasks=max(contested, before.tasks if before is not None else 0),
            trials=trials + (before.trials if before is not None else 0),
            spent_s=round(spent.total_s(), 3),
            **spent.as_json(),
            gained_ms=gained_ms + (before.gained_ms if before is not None else 0.0),
        )
    return list(found.values())

"""Give every task a schedule without measuring: the bank's if it has one, else a predicted one.

No worker is started, no device is held. The output is marked as predicted, so that no bank, merged
log or later search takes it for measured. TVM may end the process that predicts by a signal:
`fewtune.oneshot.predict_apart` predicts in a process of its own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fewtune.artifacts import (
    Curve,
    Fingerprint,
    Selection,
    SharedTask,
    ShareReport,
    ShareRound,
    TuneReport,
)
from fewtune.bank.bank import Bank
from fewtune.oneshot.choose import most_promising, points_of
from fewtune.oneshot.worth import BY_RULE, prediction_of
from fewtune.options import ShareOptions, TuneOptions
from fewtune.predictor import AUTO, PREDEFINED
from fewtune.predictor.predictor import (
    Predictor,
    consensus_for,
    predictor_for,
)
from fewtune.runtime.target import target_from_json
from fewtune.runtime.tvm import tvm
from fewtune.schedule.space.prior import Prior
from fewtune.schedule.space.search_space import SearchSpace
from fewtune.schedule.space.transfer import move
from fewtune.search import Guide
from fewtune.storage.database import write_database
from fewtune.storage.log_archive import log_info, require_own
from fewtune.task.extract import Task
from fewtune.timing.cold_weights import weights_outgrow_cache
from fewtune.trial.trial import Trial, trace_key
from fewtune.util.apart import at, in_step
from fewtune.util.optional_steps import last_line

# The time that the log has for a schedule that was not measured.
_UNMEASURED_S = 1.0
# If so many points cannot be made into a schedule, the task keeps its default one.
_TRIED = 16
_RULE = (
    "each task takes the schedule that is rated best, or the bank's where that holds this very "
    "task; nothing is measured"
)


class _Chosen(NamedTuple):
    """The result of one task; without a trial it keeps its default schedule."""

    line: SharedTask
    trial: Trial | None
    points: int


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


def predict_schedules(
    tasks: list[Task],
    selection: Selection,
    fingerprint: Fingerprint,
    options: ShareOptions,
    directory: Path,
    bank_directory: Path | None = None,
    left_out: Mapping[str, str] | None = None,
) -> ShareReport:
    """Predict a schedule of every task that is not set aside, and write their log.

    Parameters
    ----------
    tasks : list of Task
        The model's tasks.
    selection : Selection
    fingerprint : Fingerprint
    options : ShareOptions
        Its predictor and seed are used.
    directory : Path
        Gets what `fewtune.sharing.share.share_schedules` writes there.
    bank_directory : Path, optional
        What `fewtune.bank` wrote.
    left_out : mapping of str, optional
        Tasks that keep their default schedule, by name, with the reason.

    Raises
    ------
    InputError
        If the predictor or the bank cannot be used here.
    """
    began_s = time.perf_counter()
    target = target_from_json(fingerprint.target)
    bank = None
    if bank_directory is not None:
        require_own(bank_directory, fingerprint)
        bank = Bank.read(bank_directory)
    predictor = consensus_for(options.predictor, target)
    if predictor is None and options.predictor == AUTO:
        # No predictor is for such vectors and threads: the analytic model is better than none.
        predictor = predictor_for(PREDEFINED, target)
    aside = set(selection.set_aside)
    wanted = [task for task in tasks if task.info.name not in aside]
    whole = sum(task.info.share for task in wanted) or 1.0
    is_cold = weights_outgrow_cache(tasks)
    chosen: dict[str, _Chosen] = {}
    left_out = left_out or {}
    at("it was reading what it needs", optional=[task.info.name for task in wanted])
    for task in wanted:
        name = task.info.name
        if name in left_out:
            chosen[name] = _Chosen(_line(task, "default", left_out[name]), None, 0)
            continue
        at(f"it was predicting a schedule of {name}")
        with in_step(name):
            count = points_of(task.info.share / whole)
            chosen[name] = _from_bank(task, bank, target) or _predicted(
                task, target, predictor, count, is_cold=is_cold, seed=options.seed
            )
    at("it was writing the log")
    log_info(fingerprint).model_copy(update={"predicted": True, "checked": False}).write(directory)
    found = {name: [each.trial] for name, each in chosen.items() if each.trial is not None}
    modules = {task.info.name: task.mod for task in wanted if task.info.name in found}
    write_database(directory, modules, found, target)
    Curve(points=[]).write(directory)
    spent_s = round(time.perf_counter() - began_s, 3)
    points = sum(each.points for each in chosen.values())
    report = ShareReport(
        model=selection.model,
        strategy=selection.strategy,
        tasks=[each.line for each in chosen.values()],
        rounds=[_round(len(found), spent_s)],
        trials=0,
        sharing_s=spent_s,
        stopped_by="predicted",
        prediction=prediction_of(
            predictor, target, points, [each.line for each in chosen.values()]
        ),
    )
    report.write(directory)
    return report


def _from_bank(task: Task, bank: Bank | None, target: tvm.target.Target) -> _Chosen | None:
    """The bank's best schedule of this very task."""
    entry = bank.entries.get(task.info.workload) if bank is not None else None
    if bank is None or entry is None:
        return None
    if entry.best_ms > entry.fastest_ms:
        # The default schedule was faster.
        return _Chosen(_line(task, "default", "the bank found none faster"), None, 0)
    try:
        made = move(bank.donations(entry.workload)[:1], SearchSpace(task.mod, target))[0]
    except Exception:  # noqa: BLE001 (whatever TVM raises, it can be predicted)
        return None
    if made.schedule is None:
        return None
    trial = Trial(trace_key(made.schedule.trace), [entry.best_ms / 1e3], None)
    known = {"donor": f"{entry.origin}:{entry.workload[:8]}", "donor_rank": 1}
    line = _line(task, "known").model_copy(update={**known, "best_ms": entry.best_ms})
    return _Chosen(line, trial, 0)


def _predicted(
    task: Task,
    target: tvm.target.Target,
    predictor: Predictor | None,
    count: int,
    *,
    is_cold: bool,
    seed: int,
) -> _Chosen:
    """The first of the most promising points that can be made into a schedule."""
    random = np.random.default_rng([seed, *task.info.name.encode()])
    try:
        space = SearchSpace(task.mod, target)
        prior = Prior(space)
        guide = Guide.of(space, prior, predictor, is_cold=is_cold) if predictor else None
        points = most_promising(space, prior, guide, count, random)
        for place, point in enumerate(points[:_TRIED]):
            made = space.make(point, seed=place + 1)
            if made.schedule is not None:
                trial = Trial(trace_key(made.schedule.trace), [_UNMEASURED_S], None)
                note = "" if guide is not None else BY_RULE
                return _Chosen(_line(task, "predicted", note), trial, len(points))
    except Exception as fault:  # noqa: BLE001 (a task that TVM fails on keeps its default)
        note = f"no schedule could be predicted: {last_line(fault)}"
        return _Chosen(_line(task, "default", note), None, 0)
    note = "no rule draws schedules for it" if not points else "no schedule applies"
    return _Chosen(_line(task, "default", note), None, len(points))


def _line(task: Task, status: str, note: str = "") -> SharedTask:
    return SharedTask.model_validate(
        {
            "task": task.info.name,
            "donors": [],
            "donor": None,
            "donor_rank": None,
            "status": status,
            "offered": 0,
            "valid": 0,
            "trials": 0,
            "default_ms": None,
            "best_ms": None,
            "failures": {},
            "note": note,
        }
    )


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

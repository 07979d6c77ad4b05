"""Choose schedules without measuring: the bank's if it has one, else a predicted one.

No worker is started, no device is held. TVM may end the process that chooses by a signal:
`fewtune.oneshot.predict_apart` chooses in processes of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fewtune.artifacts import (
    Fingerprint,
    Prediction,
    Selection,
    SharedTask,
    TaskInfo,
)
from fewtune.bank.bank import Bank
from fewtune.errors import last_line
from fewtune.oneshot.choose import most_promising, points_of
from fewtune.oneshot.worth import BY_RULE, prediction_of
from fewtune.options import ShareOptions
from fewtune.predictor import AUTO, PREDEFINED
from fewtune.predictor.predictor import (
    Predictor,
    consensus_for,
    predictor_for,
)
from fewtune.process.apart import at, in_step
from fewtune.runtime.target import target_from_json
from fewtune.runtime.tvm import tvm
from fewtune.schedule.space.prior import Prior
from fewtune.schedule.space.search_space import SearchSpace
from fewtune.schedule.space.transfer import move
from fewtune.search import Guide
from fewtune.storage.log_archive import require_own
from fewtune.task.extract import Task
from fewtune.timing.cache_state import weights_outgrow_cache
from fewtune.trial.trial import Trial, trace_key

# The time that the log has for a schedule that was not measured.
_UNMEASURED_S = 1.0
# If so many points cannot be made into a schedule, the task keeps its default one.
_TRIED = 16


class Chosen(NamedTuple):
    """The result of one task; without a trial it keeps its default schedule."""

    line: SharedTask
    trial: Trial | None
    points: int

    def as_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "line": self.line.model_dump(mode="json"),
            "trial": None if self.trial is None else self.trial.as_json(),
            "points": self.points,
        }

    @staticmethod
    def from_json(values: dict[str, Any]) -> Chosen:
        """What `as_json` gave."""
        trial = values["trial"]
        return Chosen(
            SharedTask.model_validate(values["line"]),
            None if trial is None else Trial.from_json(trial),
            values["points"],
        )


def choose_schedules(
    tasks: list[Task],
    points: Mapping[str, int],
    fingerprint: Fingerprint,
    options: ShareOptions,
    bank_directory: Path | None = None,
    left_out: Mapping[str, str] | None = None,
) -> tuple[dict[str, Chosen], Prediction]:
    """Choose a schedule for some tasks of a model.

    Parameters
    ----------
    tasks : list of Task
        All tasks of the model.
    points : mapping of str to int
        How many points to rate of each task to choose for. A task's schedule does not depend on
        the others.
    fingerprint : Fingerprint
    options : ShareOptions
        Its predictor and seed are used.
    bank_directory : Path, optional
        What `fewtune.bank` wrote.
    left_out : mapping of str, optional
        Tasks that keep their default schedule, by name, with the reason.

    Returns
    -------
    chosen : dict of Chosen
        By task.
    prediction : Prediction
        Which predictor rated their points.

    Raises
    ------
    InputError
        If the predictor or the bank cannot be used here.
    """
    target = target_from_json(fingerprint.target)
    bank = None
    if bank_directory is not None:
        require_own(bank_directory, fingerprint)
        bank = Bank.read(bank_directory)
    predictor = consensus_for(options.predictor, target)
    if predictor is None and options.predictor == AUTO:
        # No predictor is for such vectors and threads: the analytic model is better than none.
        predictor = predictor_for(PREDEFINED, target)
    wanted = [task for task in tasks if task.info.name in points]
    is_cold = weights_outgrow_cache(tasks)
    chosen: dict[str, Chosen] = {}
    left_out = left_out or {}
    at("it was reading what it needs", optional=[task.info.name for task in wanted])
    for task in wanted:
        name = task.info.name
        if name in left_out:
            chosen[name] = Chosen(_line(task, "default", left_out[name]), None, 0)
            continue
        at(f"it was predicting a schedule of {name}")
        with in_step(name):
            chosen[name] = _from_bank(task, bank, target) or _predicted(
                task, target, predictor, points[name], is_cold=is_cold, seed=options.seed
            )
    return chosen, prediction_of(predictor, target)


def points_by_task(infos: Sequence[TaskInfo], selection: Selection) -> dict[str, int]:
    """How many points are rated of each task that is not set aside."""
    aside = set(selection.set_aside)
    shares = {info.name: info.share for info in infos if info.name not in aside}
    whole = sum(shares.values()) or 1.0
    return {name: points_of(share / whole) for name, share in shares.items()}


def _from_bank(task: Task, bank: Bank | None, target: tvm.target.Target) -> Chosen | None:
    """The bank's best schedule of this very task."""
    entry = bank.entries.get(task.info.workload) if bank is not None else None
    if bank is None or entry is None:
        return None
    if entry.best_ms > entry.fastest_ms:
        # The default schedule was faster.
        return Chosen(_line(task, "default", "the bank found none faster"), None, 0)
    try:
        made = move(bank.donations(entry.workload)[:1], SearchSpace(task.mod, target))[0]
    except Exception:  # noqa: BLE001 (whatever TVM raises, it can be predicted)
        return None
    if made.schedule is None:
        return None
    trial = Trial(trace_key(made.schedule.trace), [entry.best_ms / 1e3], None)
    known = {"donor": f"{entry.origin}:{entry.workload[:8]}", "donor_rank": 1}
    line = _line(task, "known").model_copy(update={**known, "best_ms": entry.best_ms})
    return Chosen(line, trial, 0)


def _predicted(
    task: Task,
    target: tvm.target.Target,
    predictor: Predictor | None,
    count: int,
    *,
    is_cold: bool,
    seed: int,
) -> Chosen:
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
                return Chosen(_line(task, "predicted", note), trial, len(points))
    except Exception as fault:  # noqa: BLE001 (a task that TVM fails on keeps its default)
        note = f"no schedule could be predicted: {last_line(fault)}"
        return Chosen(_line(task, "default", note), None, 0)
    note = "no rule draws schedules for it" if not points else "no schedule applies"
    return Chosen(_line(task, "default", note), None, len(points))


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

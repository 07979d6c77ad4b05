"""Trials of tuning logs: a search starts from them, a predictor of one's own is trained on them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fewtune.artifacts import Fingerprint, TuneReport
from fewtune.errors import InputError
from fewtune.predictor import FLOATS
from fewtune.predictor.features import DecisionFeatures
from fewtune.predictor.pretrained import (
    Pretrained,
    TaskSamples,
    read_samples,
    require_alike,
    write_samples,
)
from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.target import target_from_json
from fewtune.runtime.tvm import ms
from fewtune.schedule.space.design_space import Point
from fewtune.schedule.space.prior import Prior
from fewtune.schedule.space.search_space import SearchSpace
from fewtune.storage.database import best_trials, read_database, read_trace, require_own
from fewtune.task.extract import Task, read_tasks
from fewtune.trial.trial import Trial


def measured_trials(database: ms.database.Database, tasks: list[Task]) -> dict[str, list[Trial]]:
    """The valid trials of tasks, as the tuning log has them."""
    return {
        task.info.name: [*map(Trial.from_record, best_trials(database, task.mod, 1_000_000))]
        for task in tasks
    }


def known_points(space: SearchSpace, trials: list[Trial]) -> tuple[list[Point], list[float]]:
    """Measured trials as points of a space, with their seconds; others are left out."""
    points, times_s = [], []
    for trial in trials:
        point = space.read(read_trace(space.module, trial, space.target))
        if point is not None:
            points.append(point)
            times_s.append(trial.outcome.median_s)
    return points, times_s


class Tuned(NamedTuple):
    """Folders of a model's tasks, and of the log of their full tuning."""

    tasks: Path
    log: Path


def learnable_of(tuned: Tuned, fingerprint: Fingerprint) -> list[TaskSamples]:
    """The trials of full tuning for a model's tasks, by what each computes unfused."""
    require_own(tuned.log, fingerprint)
    is_cold = TuneReport.read(tuned.log).cold_weights
    database = read_database(tuned.log)
    tasks = [t for t in read_tasks(tuned.tasks) if database.has_workload(t.mod)]
    trials = measured_trials(database, tasks)
    found = []
    for task in tasks:
        space = SearchSpace(task.mod, target_from_json(fingerprint.target))
        contraction = Prior(space).contraction
        features = DecisionFeatures.if_usable(space.programs, contraction, is_cold=is_cold)
        points, times_s = known_points(space, trials[task.info.name])
        if features is not None and points:
            name = str((task.info.operator, str(task.info.shapes[:2])))
            known = features.of(points), np.array(times_s)
            found.append(TaskSamples(*known, name, features.data_type))
    return found


def train(
    models: Mapping[str, Tuned],
    fingerprint: Fingerprint | None,
    given: Sequence[Path] = (),
    kept: Path | None = None,
) -> Pretrained:
    """Train a predictor on models that were tuned in full, and on samples kept earlier.

    Parameters
    ----------
    models : mapping of str to Tuned
    fingerprint : Fingerprint, optional
        Of the machine that tuned them.
    given : sequence of Path
        Files of kept samples.
    kept : Path, optional
        File in which to keep the samples.

    Raises
    ------
    InputError
        If there is nothing to learn from, or not all of it is of one kind of machine.
    """
    stored = [(path, *read_samples(path)) for path in given]
    conditions = dict(stored[0][2]) if stored else {}
    if fingerprint is not None:
        conditions |= _conditions(fingerprint)
    taught: list[str] = []
    learnt: list[TaskSamples] = []
    for path, earlier, own in stored:
        require_alike(path, own, conditions)
        taught += own.get("models", [])
        learnt += earlier
    if fingerprint is not None:
        for tuned in models.values():
            learnt += learnable_of(tuned, fingerprint)
    if not learnt:
        raise InputError("there is nothing to learn from: name models tuned in full, or --samples")
    conditions |= {"models": [*taught, *models], "tasks": len(learnt)}
    # One of several kinds rates all.
    kinds = {each.products for each in learnt}
    conditions["products"] = kinds.pop() if len(kinds) == 1 else FLOATS
    if kept is not None:
        write_samples(kept, learnt, conditions)
    return Pretrained.train(learnt, conditions)


def _conditions(fingerprint: Fingerprint) -> dict[str, Any]:
    """The conditions of measurements on a machine."""
    return {
        "device": fingerprint.device,
        "target": json.loads(fingerprint.target),
        "tvm": fingerprint.versions.get("apache-tvm", ""),
        "threads": fingerprint.threads,
        "lanes": CpuTraits.of(target_from_json(fingerprint.target)).lanes("float32"),
    }

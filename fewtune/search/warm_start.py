"""Warm start: trials of a tuning log, from which a search or a cost model starts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import tvm_ffi

from fewtune.predictor.features import DecisionFeatures
from fewtune.predictor.pretrained import TaskSamples
from fewtune.runtime.tvm import ms
from fewtune.schedule.space.design_space import Point, Trace
from fewtune.schedule.space.prior import Prior
from fewtune.schedule.space.search_space import SearchSpace
from fewtune.search import Guide, Knowledge, Scorer, remade
from fewtune.search.cost_model import CostModel
from fewtune.storage.database import best_trials, read_trace
from fewtune.task.extract import Task
from fewtune.trial.trial import Trial


def measured_trials(database: ms.database.Database, tasks: list[Task]) -> dict[str, list[Trial]]:
    """The valid trials of tasks, as the tuning log has them."""
    return {
        task.info.name: [
            Trial.from_record(record) for record in best_trials(database, task.mod, 1_000_000)
        ]
        for task in tasks
    }


def known_points(space: SearchSpace, trials: list[Trial]) -> tuple[list[Point], list[float]]:
    """Measured trials as points of a space, with their seconds; others are left out."""
    return _points(space, _traces(space, trials))


def learnable(
    cost_model: CostModel, space: SearchSpace, traces: Iterable[tuple[Trace, float]]
) -> tuple[list[np.ndarray], list[float]]:
    """Features of measured traces, and their seconds; traces outside the space are left out.

    Parameters
    ----------
    cost_model : BoostedTrees
        Extracts them; it learns nothing.
    space : SearchSpace
    traces : iterable of (Trace, float)

    Returns
    -------
    features : list of ndarray, each (stores, 164)
    times_s : list of float
    """
    proposals, times_s = remade(space, *_points(space, traces))
    return Scorer(space, cost_model).features([p.schedule for p in proposals]), times_s


def teach(knowledge: Knowledge, taught: Iterable[tuple[SearchSpace, list[Trial]]]) -> None:
    """Let a run learn from the trials of several tasks.

    The predictor learns from tasks of kinds that it knows. The cost model learns from the rest, in
    one training.
    """
    rest = []
    for space, trials in taught:
        guide = None
        if knowledge.predictor is not None:
            guide = Guide.of(space, Prior(space), knowledge.predictor, is_cold=knowledge.is_cold)
        if guide is None:
            rest.append((space, trials))
        else:
            guide.learn_points(*known_points(space, trials))
    cost_model = knowledge.cost_model
    cost_model.learn_groups(
        {
            tvm_ffi.structural_hash(space.module): learnable(
                cost_model, space, _traces(space, trials)
            )
            for space, trials in rest
        }
    )


def task_samples(space: SearchSpace, trials: list[Trial], *, is_cold: bool) -> TaskSamples | None:
    """Samples for a predictor from a task's trials; None if it does not know such tasks.

    Parameters
    ----------
    space : SearchSpace
    trials : list of Trial
    is_cold : bool
        Whether weights were not in the caches when they were measured.
    """
    features = DecisionFeatures.if_usable(space.programs, Prior(space).contraction, is_cold=is_cold)
    points, times_s = known_points(space, trials)
    if features is None or not points:
        return None
    return TaskSamples(features.of(points), np.array(times_s))


def _traces(space: SearchSpace, trials: list[Trial]) -> Iterator[tuple[Trace, float]]:
    for trial in trials:
        yield read_trace(space.module, trial, space.target), trial.outcome.median_s


def _points(
    space: SearchSpace, traces: Iterable[tuple[Trace, float]]
) -> tuple[list[Point], list[float]]:
    points, times_s = [], []
    for trace, time_s in traces:
        point = space.read(trace)
        if point is not None:
            points.append(point)
            times_s.append(time_s)
    return points, times_s

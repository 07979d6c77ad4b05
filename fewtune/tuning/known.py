"""What was measured before: trials of a tuning log, for a search or a cost model to start from."""

from __future__ import annotations

import tvm_ffi

from fewtune.schedule.search_space import Point, SearchSpace
from fewtune.task.extract import Task
from fewtune.tuning.cost_model import BoostedTrees
from fewtune.tuning.log import Trial, best_trials, read_trace
from fewtune.tuning.strategies import Scorer, remade
from fewtune.tvm_runtime import ms


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
    points, times_s = [], []
    for trial in trials:
        point = space.read(read_trace(space.module, trial, space.target))
        if point is not None:
            points.append(point)
            times_s.append(trial.outcome.median_s)
    return points, times_s


def teach(cost_model: BoostedTrees, taught: list[tuple[SearchSpace, list[Trial]]]) -> None:
    """Let a cost model learn from the trials of several tasks, in one training."""
    groups = {}
    for space, trials in taught:
        proposals, times_s = remade(space, *known_points(space, trials))
        features = Scorer(space, cost_model).features([p.schedule for p in proposals])
        groups[tvm_ffi.structural_hash(space.module)] = (features, times_s)
    cost_model.learn_groups(groups)

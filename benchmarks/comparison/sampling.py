"""Which practice tasks and which of their trials to train a predictor on, by replay.

The One-Shot Tuner (Ryu et al. 2022) draws tasks by a prior, what networks have most, and schedules
by exploration, those that a search would visit, rather than either at random. Practice does both
already: half of its networks have usual shapes, and its samples are a search's trials. Here equal
numbers of trials, so equal training times, are chosen from these samples in several ways. Each is
judged on usual shapes of a fold that no training sees.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.comparison.replay import told
from fewtune.predictor.pretrained import Pretrained, TaskSamples
from fewtune.predictor.task_prior import is_usual, usual_first
from fewtune.predictor.training_samples import Sampled, read_samples

_FOLDS, _LEAST = 4, 12
# Of all training tasks, and of a task's trials, the part that is learnt from.
_TASKS, _TRIALS = 0.4, 0.4
_Tasks = Callable[[list[Sampled], np.random.Generator], list[Sampled]]
_Trials = Callable[[TaskSamples, np.random.Generator], TaskSamples]


def _any_tasks(tasks: list[Sampled], random: np.random.Generator) -> list[Sampled]:
    chosen = random.permutation(len(tasks))[: round(_TASKS * len(tasks))]
    return [tasks[int(place)] for place in sorted(chosen)]


def _by_prior(tasks: list[Sampled], random: np.random.Generator) -> list[Sampled]:
    return usual_first(tasks, random)[: round(_TASKS * len(tasks))]


def _some(samples: TaskSamples, places: np.ndarray) -> TaskSamples:
    return TaskSamples(samples.features[places], samples.times_s[places])


def _any_trials(samples: TaskSamples, random: np.random.Generator) -> TaskSamples:
    count = max(4, round(_TRIALS * len(samples.times_s)))
    return _some(samples, np.sort(random.permutation(len(samples.times_s))[:count]))


def _spread(samples: TaskSamples, _: np.random.Generator) -> TaskSamples:
    """The fastest and the slowest, and evenly between; samples lie in the order of their times."""
    last = len(samples.times_s) - 1
    count = max(4, round(_TRIALS * len(samples.times_s)))
    return _some(samples, np.linspace(0, last, count).round().astype(int))


def _fastest(samples: TaskSamples, _: np.random.Generator) -> TaskSamples:
    count = max(4, round(_TRIALS * len(samples.times_s)))
    return _some(samples, np.argsort(samples.times_s, kind="stable")[:count])


def _all_trials(samples: TaskSamples, _: np.random.Generator) -> TaskSamples:
    return samples


_WAYS: dict[str, tuple[_Tasks, _Trials]] = {
    "40 % of tasks, by lots": (_any_tasks, _all_trials),
    "40 % of tasks, by the prior": (_by_prior, _all_trials),
    "40 % of each task's trials, by lots": (lambda tasks, _: tasks, _any_trials),
    "40 % of each task's trials, the fastest": (lambda tasks, _: tasks, _fastest),
    "40 % of each task's trials, spread over ranks": (lambda tasks, _: tasks, _spread),
    "all tasks and trials": (lambda tasks, _: tasks, _all_trials),
}


def rows_of(file: Path) -> list[dict[str, Any]]:
    """One row a way of choosing what to train on."""
    sampled, conditions = read_samples(file)
    kept = [
        each
        for each in sampled
        if np.isfinite(each.samples.times_s).all() and len(each.samples.times_s) >= _LEAST
    ]
    shapes = sorted({each.shapes for each in kept})
    order = np.random.default_rng(0).permutation(len(shapes))
    rows = []
    for name, (tasks_of, trials_of) in _WAYS.items():
        scores, times, trials, spent_s = [], [], 0, 0.0
        for part in range(_FOLDS):
            fold = {shapes[int(place)] for place in order[part::_FOLDS]}
            random = np.random.default_rng(part)
            began_s = time.perf_counter()
            tasks = tasks_of([each for each in kept if each.shapes not in fold], random)
            taught = [trials_of(each.samples, random) for each in tasks]
            trained = Pretrained.train(taught, conditions)
            spent_s += time.perf_counter() - began_s
            trials += sum(len(each.times_s) for each in taught)
            for each in kept:
                if each.shapes in fold and is_usual(each):
                    scores.append(trained.expected(each.samples.features))
                    times.append(each.samples.times_s)
        row = told(
            f"decision predictor, {name}", f"{file.stem}, usual held-out shapes", scores, times
        )
        more = {"trials": round(trials / _FOLDS), "train_s": round(spent_s / _FOLDS, 2)}
        rows.append(row | more | {"sampling": name})
    return rows

"""Rules that choose some of many recorded trials for a predictor to learn from.

The One-Shot Tuner (Ryu et al. 2022) samples tasks by their frequency in networks, and schedules
along the walk of a search, so that most of them are fast. Here recorded trials are sampled by such
rules and by uniform ones, the same number by each. ``docs/study.md`` compares the rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from fewtune.predictor.feature_names import OF_POINTS
from fewtune.predictor.pretrained import TaskSamples, log_speeds
from fewtune.predictor.task_prior import at_most, usual_first
from fewtune.predictor.training_samples import Sampled

USUAL_TASKS, ANY_TASKS = "usual-tasks", "any-tasks"
ANY_TRIALS, FASTEST, SPREAD, WALK = "any-trials", "fastest-trials", "spread-trials", "walk"
# The least number of trials of a task.
_FEWEST = 4
_DECISIONS = slice(OF_POINTS.index("elements"), len(OF_POINTS))
# A walk steps to one of so many nearest trials; it takes a slower one with a probability that falls
# with the temperature, which begins here.
_NEAREST, _HOT = 4, 0.3


def sampled(
    tasks: Sequence[Sampled], trials: int, rule: str, random: np.random.Generator
) -> list[Sampled]:
    """At most about so many trials of some tasks.

    Parameters
    ----------
    tasks : sequence of Sampled
    trials : int
        Number for all tasks together. Rules that choose trials keep equal parts of all tasks.
    rule : str
        One of `RULES`.
    random : Generator
    """
    if rule == USUAL_TASKS:
        return at_most(usual_first(tasks, random), trials)
    if rule == ANY_TASKS:
        return at_most([tasks[int(i)] for i in random.permutation(len(tasks))], trials)
    choose = _TRIALS[rule]
    part = trials / max(1, sum(len(task.samples.times_s) for task in tasks))
    kept = []
    for task in tasks:
        known = task.samples
        count = min(len(known.times_s), max(_FEWEST, round(part * len(known.times_s))))
        places = np.sort(choose(known, count, random))
        chosen = TaskSamples(known.features[places], known.times_s[places])
        kept.append(task._replace(samples=chosen))
    return kept


def _any(samples: TaskSamples, count: int, random: np.random.Generator) -> np.ndarray:
    return random.permutation(len(samples.times_s))[:count]


def _fastest(samples: TaskSamples, count: int, _: np.random.Generator) -> np.ndarray:
    return np.argsort(samples.times_s, kind="stable")[:count]


def _spread(samples: TaskSamples, count: int, _: np.random.Generator) -> np.ndarray:
    """The fastest and the slowest, and evenly between."""
    order = np.argsort(samples.times_s, kind="stable")
    return order[np.linspace(0, len(order) - 1, count).round().astype(int)]


def _walk(samples: TaskSamples, count: int, random: np.random.Generator) -> np.ndarray:
    """The trials that simulated annealing would visit if only recorded ones existed."""
    speeds = log_speeds(samples.times_s)
    rows = samples.features[:, _DECISIONS].astype(float)
    spread = rows.std(axis=0)
    rows /= np.where(spread > 0, spread, 1.0)
    here = int(random.integers(len(speeds)))
    seen, left = [here], set(range(len(speeds))) - {here}
    while len(seen) < count:
        places = np.array(sorted(left))
        apart = ((rows[places] - rows[here]) ** 2).sum(axis=1)
        near = places[np.argsort(apart, kind="stable")[:_NEAREST]]
        there = int(near[random.integers(len(near))])
        seen.append(there)
        left.remove(there)
        heat = _HOT * (1 - len(seen) / (count + 1))
        if random.random() < math.exp(min(0.0, speeds[there] - speeds[here]) / heat):
            here = there
    return np.array(seen)


_TRIALS: dict[str, Callable[[TaskSamples, int, np.random.Generator], np.ndarray]] = {
    ANY_TRIALS: _any,
    FASTEST: _fastest,
    SPREAD: _spread,
    WALK: _walk,
}
RULES = (USUAL_TASKS, ANY_TASKS, *_TRIALS)

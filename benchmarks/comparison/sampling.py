"""Which practice tasks and which of their trials to train a predictor on, by replay.

The One-Shot Tuner (Ryu et al. 2022) samples tasks by a prior and schedules by exploration
(`fewtune.predictor.trial_sampling`). Each rule keeps as many trials of one practice run, so that
trainings take as long, and is judged on usual shapes of a fold that no training sees. What the
rules choose from was itself measured by a search: truly random schedules are not among them.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from benchmarks.comparison.replay import ranking_row
from fewtune.predictor.pretrained import Pretrained
from fewtune.predictor.task_prior import is_usual
from fewtune.predictor.training_samples import Sampled, read_samples
from fewtune.predictor.trial_sampling import (
    ANY_TASKS,
    ANY_TRIALS,
    FASTEST,
    SPREAD,
    USUAL_TASKS,
    WALK,
    sampled,
)

_FOLDS, _LEAST = 4, 12
# Of all trials, the part that is learnt from; and how often lots are drawn.
_PART, _DRAWS = 0.4, 3
_SHOWN = {
    ANY_TASKS: "40 % of trials, any tasks",
    USUAL_TASKS: "40 % of trials, tasks by the prior",
    ANY_TRIALS: "40 % of trials, any of each task",
    FASTEST: "40 % of trials, the fastest of each task",
    SPREAD: "40 % of trials, spread over the ranks of each task",
    WALK: "40 % of trials, along a walk in each task (exploration)",
    "": "all trials",
}
# What a rule is held to: as many of the same things, drawn by lots.
_LOTS = {
    USUAL_TASKS: ANY_TASKS,
    FASTEST: ANY_TRIALS,
    SPREAD: ANY_TRIALS,
    WALK: ANY_TRIALS,
}
# Two-sided 95 % of a normal distribution.
_Z = 1.96


def rows_of(file: Path) -> list[dict[str, Any]]:
    """One row a rule."""
    found, conditions = read_samples(file)
    kept = [
        each
        for each in found
        if np.isfinite(each.samples.times_s).all() and len(each.samples.times_s) >= _LEAST
    ]
    shapes = sorted({each.shapes for each in kept})
    order = np.random.default_rng(0).permutation(len(shapes))
    folds = [{shapes[int(place)] for place in order[part::_FOLDS]} for part in range(_FOLDS)]
    rows, ranks = [], {}
    for rule in _SHOWN:
        row, ranks[rule] = _judged(file.stem, rule, kept, folds, conditions)
        lots = _LOTS.get(rule)
        if lots is not None:
            # The same tasks by both: their differences say more than either mean.
            apart = ranks[rule] - ranks[lots]
            error = _Z * float(apart.std(ddof=1)) / len(apart) ** 0.5
            row["over_lots"] = [round(float(apart.mean()) + k * error, 3) for k in (0, -1, 1)]
        rows.append(row)
    return rows


def _judged(
    name: str, rule: str, kept: list[Sampled], folds: list[set[str]], conditions: dict[str, Any]
) -> tuple[dict[str, Any], np.ndarray]:
    """A rule's row, and the rank correlation of each task held out, mean over draws."""
    scores, times, trials, spent_s = [], [], 0, 0.0
    draws = _DRAWS if rule else 1
    for draw in range(draws):
        for part, fold in enumerate(folds):
            taught = [each for each in kept if each.shapes not in fold]
            if rule:
                most = round(_PART * sum(len(each.samples.times_s) for each in taught))
                taught = sampled(taught, most, rule, np.random.default_rng([draw, part]))
            began_s = time.perf_counter()
            trained = Pretrained.train([each.samples for each in taught], conditions)
            spent_s += time.perf_counter() - began_s
            trials += sum(len(each.samples.times_s) for each in taught)
            for each in kept:
                if each.shapes in fold and is_usual(each):
                    scores.append(trained.expected(each.samples.features))
                    times.append(each.samples.times_s)
    on = f"{name}, usual held-out shapes"
    row = ranking_row(f"decision predictor, {_SHOWN[rule]}", on, scores, times)
    # Further draws judge the same tasks again: they narrow no interval.
    middle, low, high = row["rank_correlation"], *row["rank_correlation_ci"]
    wider = [round(middle + (bound - middle) * draws**0.5, 3) for bound in (low, high)]
    tasks = len(times) // draws
    row |= {
        "rank_correlation_ci": wider,
        "tasks": tasks,
        "trials": round(trials / draws / _FOLDS),
        "train_s": round(spent_s / draws / _FOLDS, 2),
        "sampling": rule or "all",
    }
    each = [spearmanr(s, -t)[0] for s, t in zip(scores, times, strict=True)]
    return row, np.array(each).reshape(draws, tasks).mean(axis=0)

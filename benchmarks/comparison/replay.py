"""The study's parts that measure nothing: recorded tasks and practice samples, replayed.

Strategies search a task whose every schedule was measured once (`tests.recorded`); cost models are
held to that task, and to the practice samples under ``results/practice``, whose shapes are held
out in four folds.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from benchmarks.comparison.strategies import BATCH, JUDGED, UNJUDGED
from benchmarks.comparison.strategy_rows import bounds
from fewtune.options import TuneOptions
from fewtune.predictor.features import DecisionFeatures
from fewtune.predictor.predefined import Predefined
from fewtune.predictor.predictor import Predictor
from fewtune.predictor.pretrained import Pretrained, TaskSamples, read_samples
from fewtune.research.gcn import GraphModel
from fewtune.runtime.target import target_from_json
from fewtune.schedule.space.design_space import Point
from fewtune.schedule.space.prior import Prior
from fewtune.search import Knowledge, make_strategy
from fewtune.search.cost_model import BoostedTrees
from fewtune.search.scorer import Scorer
from fewtune.search.strategy import remade
from tests import recorded

AT = (8, 16, 32, 64)
_FOLDS = 4
# Points that online cost models learn from, and others that they are held to.
_LEARNT, _JUDGED = 64, 256
# Two-sided 95 % of a normal distribution.
_Z = 1.96


def recorded_search(name: str, judge: str, seed: int) -> tuple[list[float], float]:
    """Best seconds after each trial of a strategy on the recorded task, and the search's own."""
    space = recorded.space()
    predictor = Predictor(Predefined.of(space.target)) if judge == "predefined" else None
    options = TuneOptions(strategy=name, batch_size=BATCH, seed=seed, informed_start=False)
    if predictor is not None:
        options = options.model_copy(update={"informed_start": True})
    search = make_strategy(space, Knowledge(predictor=predictor), options, seed)
    best: list[float] = []
    began_s = time.perf_counter()
    while len(best) < AT[-1]:
        batch = search.next_batch(min(BATCH, AT[-1] - len(best)))
        if not batch:
            break
        times_s = [recorded.times_s()[proposal.point] for proposal in batch]
        for time_s in times_s:
            best.append(min(time_s, best[-1] if best else math.inf))
        search.learn(batch, times_s)
    return best, time.perf_counter() - began_s


def strategies_recorded(seeds: int) -> list[dict[str, Any]]:
    """One row a strategy and what rates its candidates."""
    optimum_s = min(recorded.times_s().values())
    pairs = [(name, judge) for name in JUDGED for judge in ("xgboost", "predefined")]
    pairs += [(name, "none") for name in UNJUDGED]
    rows = []
    for name, judge in pairs:
        runs = [recorded_search(name, judge, seed) for seed in range(1, seeds + 1)]
        curves = np.array([best + [best[-1]] * (AT[-1] - len(best)) for best, _ in runs])
        logs = np.log(curves / optimum_s)
        found = {}
        for trials in AT:
            found[str(trials)] = bounds(np.exp(logs[:, trials - 1]).tolist())
        rows.append(
            {
                "name": name,
                "judge": judge,
                "tasks": "recorded",
                "seeds": seeds,
                "over_optimum": found,
                "search_s": round(statistics.median(s for _, s in runs), 3),
                "curve": [round(float(x), 4) for x in np.exp(logs.mean(axis=0))],
            }
        )
        print(name, judge, found[str(AT[-1])], flush=True)
    return rows


def _mean_error(values: np.ndarray) -> tuple[float, float]:
    error = float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return float(values.mean()), error


def ranking_row(
    name: str, on: str, scores: list[np.ndarray], times: list[np.ndarray]
) -> dict[str, Any]:
    """A cost model's row: rank correlation, and the best of its first few over the best."""
    ranks = [
        float(spearmanr(score, -time_s)[0])
        for score, time_s in zip(scores, times, strict=True)
        if np.ptp(score) > 0 and np.ptp(time_s) > 0
    ]
    row: dict[str, Any] = {"name": name, "on": on, "tasks": len(times)}
    mean, error = _mean_error(np.array(ranks))
    row["rank_correlation"] = round(mean, 3)
    row["rank_correlation_ci"] = [round(mean - _Z * error, 3), round(mean + _Z * error, 3)]
    for top in (1, 3, 8):
        lost = [
            math.log(t[np.argsort(-s, kind="stable")[:top]].min() / t.min())
            for s, t in zip(scores, times, strict=True)
        ]
        row[f"best_of_{top}"] = round(math.exp(statistics.fmean(lost)), 4)
    return row


def models_on_practice(file: Path) -> list[dict[str, Any]]:
    """Models that go by decisions, on practice samples of shapes that they did not learn from."""
    sampled, conditions = read_samples(file)
    kept = [each for each in sampled if np.isfinite(each.times_s).all() and len(each.times_s) > 8]
    target = target_from_json(json.dumps(conditions["target"]))
    analytic = Predefined.of(target)
    shapes = sorted({each.name for each in kept})
    order = np.random.default_rng(0).permutation(len(shapes))
    folds = [{shapes[int(i)] for i in order[part::_FOLDS]} for part in range(_FOLDS)]
    learnt: dict[int, np.ndarray] = {}
    train_s = 0.0
    for fold in folds:
        began_s = time.perf_counter()
        taught = [each for each in kept if each.name not in fold]
        trees = Pretrained.train(taught, conditions)
        train_s += time.perf_counter() - began_s
        for place, each in enumerate(kept):
            if each.name in fold:
                learnt[place] = trees.expected(each.features)
    times = [each.times_s for each in kept]
    features = np.concatenate([each.features for each in kept])
    on = f"{file.stem}, held-out shapes (trials of a tuned search)"
    random = np.random.default_rng(0)
    rows = [
        ranking_row("decision predictor", on, [learnt[i] for i in range(len(kept))], times),
        ranking_row("predefined", on, [analytic.expected(e.features) for e in kept], times),
        ranking_row("lots", on, [random.random(len(t)) for t in times], times),
    ]
    rows[0] |= {"train_s": round(train_s / _FOLDS, 2)}
    rows[0] |= {"us_a_point": _us(lambda: trees.expected(features), len(features))}
    rows[1] |= {"us_a_point": _us(lambda: analytic.expected(features), len(features))}
    return rows


def _us(rate: Callable[[], object], points: int) -> float:
    """Microseconds a point, the fastest of three."""
    taken = []
    for _ in range(3):
        began_s = time.perf_counter()
        rate()
        taken.append(time.perf_counter() - began_s)
    return round(1e6 * min(taken) / points, 3)


def models_on_recorded(seeds: int) -> list[dict[str, Any]]:
    """Cost models that learn online, on unbiased draws of the recorded task."""
    space, every = recorded.space(), recorded.points()
    contraction = Prior(space).contraction
    assert contraction is not None
    features = DecisionFeatures(space.programs, contraction, is_cold=False)
    found: dict[str, list[np.ndarray]] = {}
    times: list[np.ndarray] = []
    spent: dict[str, list[float]] = {}
    for seed in range(seeds):
        drawn = np.random.default_rng(seed).permutation(len(every))
        taught = _known([every[int(i)] for i in drawn[:_LEARNT]])
        held = _known([every[int(i)] for i in drawn[_LEARNT : _LEARNT + _JUDGED]])
        taught_s, held_s = ([recorded.times_s()[p] for p in points] for points in (taught, held))
        times.append(np.array(held_s))
        for name, make in _online(space, features).items():
            began_s = time.perf_counter()
            score = make(taught, taught_s, held)
            spent.setdefault(name, []).append(time.perf_counter() - began_s)
            found.setdefault(name, []).append(score)
    rows = []
    on = f"recorded task, {_LEARNT} learnt, {_JUDGED} unbiased draws held out"
    for name, scores in found.items():
        row = ranking_row(name, on, scores, times)
        rows.append(row | {"learn_and_rate_s": round(statistics.median(spent[name]), 3)})
    return rows


def _known(points: list[Point]) -> list[Point]:
    return [point for point in points if math.isfinite(recorded.times_s()[point])]


_Online = Callable[[list[Point], list[float], list[Point]], np.ndarray]


def _online(space: Any, features: DecisionFeatures) -> dict[str, _Online]:
    """Models by name: taught by some points and their seconds, they rate others."""

    def by(kind: type, taught: list[Point], times_s: list[float], held: list[Point]) -> np.ndarray:
        scorer = Scorer(space, kind())
        scorer.learn(*remade(space, taught, times_s))
        return scorer.rate(remade(space, held, [0.0] * len(held))[0])[1]

    def analytic(_: list[Point], __: list[float], held: list[Point]) -> np.ndarray:
        return Predefined.of(space.target).expected(features.of(held))

    def corrected(taught: list[Point], times_s: list[float], held: list[Point]) -> np.ndarray:
        predictor = Predictor(Predefined.of(space.target))
        predictor.learn("task", features.of(taught), times_s)
        return predictor.expected("task", features.of(held))

    def trees(taught: list[Point], times_s: list[float], held: list[Point]) -> np.ndarray:
        samples = TaskSamples(features.of(taught), np.array(times_s))
        learnt = Pretrained.train([samples], {"lanes": 8, "threads": 2})
        return learnt.expected(features.of(held))

    return {
        "xgboost (stock features)": partial(by, BoostedTrees),
        "gcn": partial(by, GraphModel),
        "predefined": analytic,
        "predefined, corrected by trials": corrected,
        "decision trees of these trials": trees,
    }

"""Cost models on shapes that they did not learn from, by what was measured of networks' tasks.

Nothing is measured here. Trials come from the points that the study's strategies measured
(`models_on_pools`), or from the logs of models that were tuned in full in this checkout
(`models_on_logs`): there are few of the first, from slow to fast, and many of the second, most of
them fast.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.comparison.pool import Pool
from benchmarks.comparison.replay import ranking_row
from benchmarks.comparison.strategies import engine_tasks
from fewtune.artifacts import Fingerprint
from fewtune.machine.fingerprint import FingerprintOptions, detect_fingerprint
from fewtune.predictor import AUTO
from fewtune.predictor.features import DecisionFeatures
from fewtune.predictor.predefined import Predefined
from fewtune.predictor.predictor import pretrained_for
from fewtune.research.gcn import GraphModel
from fewtune.runtime.target import target_from_json
from fewtune.runtime.tvm import tvm
from fewtune.schedule.space.design_space import Point
from fewtune.schedule.space.prior import Prior
from fewtune.schedule.space.search_space import SearchSpace
from fewtune.search import Scorer, remade
from fewtune.search.cost_model import BoostedTrees
from fewtune.search.warm_start import known_points, measured_trials
from fewtune.storage.database import read_database
from fewtune.task.extract import Task, read_tasks
from stages.paths import Places

# Points of a task, drawn from all that were measured of it; with fewer than a quarter it is left.
_POINTS, _LOGGED = 96, 48
_FOLDS = 4


class Held(NamedTuple):
    """One task's points, as each kind of model takes them."""

    shapes: str
    target: tvm.target.Target
    times_s: np.ndarray
    stores: list[Any]
    graphs: list[Any]
    decisions: np.ndarray | None


def models_on_pools(folder: Path, a_model: int) -> list[dict[str, Any]]:
    """Rows of models, each task held out in turn.

    Parameters
    ----------
    folder : Path
        With pools that `benchmarks.comparison.strategies` left.
    a_model : int
        Tasks of each model.
    """
    fingerprint = detect_fingerprint(FingerprintOptions())
    held = []
    for task in engine_tasks(fingerprint, a_model):
        path = folder / f"{task.info.workload[:16]}.jsonl"
        if path.is_file():
            pool = Pool(task, fingerprint, path)
            valid = [point for point, each in pool.known.items() if math.isfinite(each.time_s)]
            times_s = [pool.known[point].time_s for point in valid]
            held.append(_held(task, pool.space, valid, times_s, _POINTS))
    known = [one for one in held if one is not None]
    on = f"{len(known)} tasks of networks, measured by strategies; each held out in turn"
    return [row | {"pools": len(known)} for row in judged(known, on, len(known))]


def models_on_logs(places: Places) -> list[dict[str, Any]]:
    """Rows of models, shapes of tasks that were tuned in full held out in folds.

    Parameters
    ----------
    places : Places
        Of a checkout in which models were tuned in full.
    """
    logs = sorted(places.out.glob("*/full/tune/tune.json"))
    held = []
    for model in (path.parents[2].name for path in logs):
        target = target_from_json(Fingerprint.read(places.fingerprint).target)
        database = read_database(places.tuned(model, "full"))
        tasks = [t for t in read_tasks(places.tasks(model)) if database.has_workload(t.mod)]
        trials = measured_trials(database, tasks)
        for task in tasks:
            space = SearchSpace(task.mod, target)
            # All are read, for the seconds that a point took; few are made.
            held.append(_held(task, space, *known_points(space, trials[task.info.name]), _LOGGED))
    known = [one for one in held if one is not None]
    on = f"{len(known)} tasks of {len(logs)} networks, trials of full tuning; shapes held out"
    return [row | {"logs": len(logs)} for row in judged(known, on, _FOLDS)]


def judged(held: Sequence[Held], on: str, folds: int) -> list[dict[str, Any]]:
    """One row a model; what learns from tasks learns from those of the other folds alone."""
    shapes = sorted({one.shapes for one in held})
    if len(shapes) < 2:
        return []
    order = np.random.default_rng(0).permutation(len(shapes))
    scores: dict[str, dict[int, np.ndarray]] = {}
    train_s: dict[str, float] = {}
    for part in range(min(folds, len(shapes))):
        fold = {shapes[int(place)] for place in order[part::folds]}
        taught = [one for one in held if one.shapes not in fold]
        began_s = time.perf_counter()
        trees = BoostedTrees()
        trees.learn_groups({n: (one.stores, one.times_s) for n, one in enumerate(taught)})
        trees.score(taught[0].stores)
        train_s["xgboost (stock features)"] = time.perf_counter() - began_s
        began_s = time.perf_counter()
        graphs = GraphModel()
        graphs.pretrain({n: (one.graphs, one.times_s) for n, one in enumerate(taught)})
        train_s["gcn"] = time.perf_counter() - began_s
        for place, one in enumerate(held):
            if one.shapes in fold:
                scores.setdefault("xgboost (stock features)", {})[place] = trees.score(one.stores)
                scores.setdefault("gcn", {})[place] = graphs.score(one.graphs)
    random = np.random.default_rng(0)
    scores["lots"] = {place: random.random(len(one.times_s)) for place, one in enumerate(held)}
    trained = pretrained_for(AUTO, held[0].target)
    for place, one in enumerate(held):
        if one.decisions is not None:
            analytic = Predefined.of(one.target).expected(one.decisions)
            scores.setdefault("predefined", {})[place] = analytic
            if trained is not None:
                expected = trained.expected(one.decisions)
                scores.setdefault("decision predictor (practice)", {})[place] = expected
    rows = []
    for name, found in scores.items():
        row = ranking_row(name, on, list(found.values()), [held[place].times_s for place in found])
        rows.append(row | ({"train_s": round(train_s[name], 2)} if name in train_s else {}))
    return rows


def _held(
    task: Task, space: SearchSpace, points: list[Point], times_s: Sequence[float], most: int
) -> Held | None:
    order = np.sort(np.random.default_rng(0).permutation(len(points))[:most])
    chosen = [points[int(place)] for place in order]
    proposals, kept_s = remade(space, chosen, [times_s[int(place)] for place in order])
    if len(proposals) < most // 4 or min(kept_s) == max(kept_s):
        return None
    schedules = [proposal.schedule for proposal in proposals]
    contraction = Prior(space).contraction
    features = DecisionFeatures.if_usable(space.programs, contraction, is_cold=False)
    return Held(
        str((task.info.operator, str(task.info.shapes[:2]))),
        space.target,
        np.array(kept_s),
        Scorer(space, BoostedTrees()).features(schedules),
        Scorer(space, GraphModel()).features(schedules),
        None if features is None else features.of([p.point for p in proposals]),
    )

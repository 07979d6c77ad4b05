"""Cost models on the points that the study's strategies measured: shapes held out, one a time."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tvm_ffi import structural_hash

from benchmarks.comparison.pool import Pool
from benchmarks.comparison.replay import told
from benchmarks.comparison.strategies import engine_tasks
from fewtune.graph_model.cost_model import GraphModel
from fewtune.machine.fingerprint import FingerprintOptions, detect_fingerprint
from fewtune.predictor import AUTO
from fewtune.predictor.features import DecisionFeatures
from fewtune.predictor.predefined import Predefined
from fewtune.predictor.predictor import pretrained_for
from fewtune.schedule.space.prior import Prior
from fewtune.search import Scorer, remade
from fewtune.search.cost_model import BoostedTrees

# Points of a task, drawn from all that were measured of it.
_POINTS, _STEPS = 96, 400


class _Held(NamedTuple):
    """One task's points, as each kind of model takes them."""

    key: int
    times_s: np.ndarray
    stores: list[Any]
    graphs: list[Any]
    decisions: np.ndarray | None
    pool: Pool


def models_on_pools(folder: Path, a_model: int) -> list[dict[str, Any]]:
    """Rank correlations on each task, of models that learnt from the other tasks alone.

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
            one = _held(Pool(task, fingerprint, path))
            held += [one] if one is not None else []
    if len(held) < 2:  # noqa: PLR2004
        return []
    scores: dict[str, list[np.ndarray]] = {}
    train_s: dict[str, float] = {}
    random = np.random.default_rng(0)
    for place, one in enumerate(held):
        others = held[:place] + held[place + 1 :]
        began_s = time.perf_counter()
        trees = BoostedTrees()
        for each in others:
            trees.learn(each.pool.space.module, each.stores, list(each.times_s))
        scores.setdefault("xgboost (stock features)", []).append(trees.score(one.stores))
        train_s["xgboost (stock features)"] = time.perf_counter() - began_s
        began_s = time.perf_counter()
        graphs = GraphModel()
        graphs.pretrain({e.key: (e.graphs, list(e.times_s)) for e in others}, _STEPS)
        scores.setdefault("gcn", []).append(graphs.score(one.graphs))
        train_s["gcn"] = time.perf_counter() - began_s
        scores.setdefault("lots", []).append(random.random(len(one.times_s)))
        if one.decisions is None:
            continue
        target = one.pool.space.target
        analytic = Predefined.of(target).expected(one.decisions)
        scores.setdefault("predefined", []).append(analytic)
        trained = pretrained_for(AUTO, target)
        if trained is not None:
            scores.setdefault("decision predictor (practice)", []).append(
                trained.expected(one.decisions)
            )
    on = f"{len(held)} tasks of networks, measured; each held out in turn"
    rows = []
    for name, found in scores.items():
        times = [
            one.times_s for one in held if len(found) == len(held) or one.decisions is not None
        ]
        row = told(name, on, found, times) | {"pools": len(held)}
        rows.append(row | ({"train_s": round(train_s[name], 2)} if name in train_s else {}))
    return rows


def _held(pool: Pool) -> _Held | None:
    valid = [point for point, each in pool.known.items() if math.isfinite(each.time_s)]
    if len(valid) < _POINTS // 4:
        return None
    order = np.random.default_rng(0).permutation(len(valid))[:_POINTS]
    points = [valid[int(place)] for place in order]
    space = pool.space
    proposals, times_s = remade(space, points, [pool.known[p].time_s for p in points])
    schedules = [proposal.schedule for proposal in proposals]
    contraction = Prior(space).contraction
    features = DecisionFeatures.if_usable(space.programs, contraction, is_cold=False)
    return _Held(
        structural_hash(space.module),
        np.array(times_s),
        Scorer(space, BoostedTrees()).features(schedules),
        Scorer(space, GraphModel()).features(schedules),
        None if features is None else features.of([p.point for p in proposals]),
        pool,
    )

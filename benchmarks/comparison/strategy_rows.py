"""Rows of strategies on real tasks: over the best of all, by rank, at equal trials and seconds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import rankdata
from scipy.stats import t as student

# How many times as slow as the best counts who has found nothing yet.
NOTHING = 10.0


def rows(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a strategy and judge: over the best of all, ranks, at equal trials and seconds."""
    if not found:
        return []
    keys = list(found[0]["over_best"])
    found = [block for block in found if list(block["over_best"]) == keys]
    ranks = np.array([rankdata([block["over_best"][key] for key in keys]) for block in found])
    seconds = [{key: _at(block, key) for key in keys} for block in found]
    # Who ranks first on the whole: others are held to it on the same tasks and seeds.
    first = keys[int(ranks.mean(axis=0).argmin())]
    rows = []
    for place, key in enumerate(keys):
        name, judge = key.split(", ")
        curves = [block["curves"][key] for block in found]
        at_trials = {
            str(count): bounds([([NOTHING] + c["over_pool"])[: count + 1][-1] for c in curves])
            for count in (8, 16, 32, 64)
            if count <= found[0]["trials"]
        }
        own = by_task(found, ranks[:, place].tolist())
        rank, error = float(own.mean()), _half_width(own)
        rows.append(
            {
                "name": name,
                "judge": judge,
                "tasks": len({block["task"] for block in found}),
                "seeds": len({block["seed"] for block in found}),
                "blocks": len(found),
                "trials": found[0]["trials"],
                "over_best": beside(found, key),
                "over_first": beside(found, key, first),
                "over_pool": at_trials,
                "over_pool_at_equal_seconds": bounds([each[key] for each in seconds]),
                "equal_s": round(statistics.fmean(block["equal_s"] for block in found), 2),
                "rank": [round(rank + k * error, 2) for k in (0, -1, 1)],
                "tuning_s": round(statistics.fmean(([0.0] + c["at_s"])[-1] for c in curves), 2),
                "search_s": round(statistics.fmean(c["search_s"] for c in curves), 2),
                "device": found[0]["device"],
                "threads": found[0]["threads"],
                "date": found[-1]["date"],
            }
        )
    return rows


def _at(block: dict[str, Any], key: str) -> float:
    """The best that was known when all had the same seconds; 10 before anything was."""
    curve = block["curves"][key]
    known = sum(at_s <= block["equal_s"] for at_s in curve["at_s"])
    return float(curve["over_pool"][known - 1]) if known else NOTHING


def bounds(ratios: Sequence[float]) -> list[float]:
    """Geometric mean of ratios, with the bounds of its 95 % confidence interval."""
    logs = np.log(np.array(ratios, dtype=float))
    mean, error = float(logs.mean()), _half_width(logs)
    return [round(math.exp(mean + k * error), 4) for k in (0, -1, 1)]


def by_task(found: list[dict[str, Any]], values: Sequence[float]) -> np.ndarray:
    """Means over the seeds of each task: seeds of one task are no further tasks."""
    of_tasks: dict[str, list[float]] = {}
    for block, value in zip(found, values, strict=True):
        of_tasks.setdefault(block["task"], []).append(value)
    return np.array([statistics.fmean(each) for each in of_tasks.values()])


def beside(found: list[dict[str, Any]], key: str, other: str | None = None) -> list[float]:
    """A strategy's times over another's, or over the best of all: mean and bounds over tasks."""
    logs = [
        math.log(block["over_best"][key] / (block["over_best"][other] if other else 1.0))
        for block in found
    ]
    return bounds(np.exp(by_task(found, logs)).tolist())


def _half_width(values: np.ndarray) -> float:
    """Half of the 95 % confidence interval of a mean, by Student's t."""
    if len(values) < 2:
        return 0.0
    return float(student.ppf(0.975, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5)

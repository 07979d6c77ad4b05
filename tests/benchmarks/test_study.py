"""The study: rows out of complete tasks and seeds, what a kill leaves."""

import json
from typing import Any

import pytest

from benchmarks.comparison import strategies, strategy_rows

KEYS = [f"{name}, {judge}" for name, judge in strategies.COMBINATIONS]


def block(task: str, seed: int, **over: float) -> dict[str, Any]:
    """One task and seed: strategies by name are so much slower than the best."""
    ratios = {key: over.get(key.split(", ")[0], 1.5) for key in KEYS}
    curve = {"at_s": [1.0, 2.0], "search_s": 0.2}
    return {
        "task": task,
        "seed": seed,
        "trials": 2,
        "equal_s": 1.5,
        "date": "2026-01-01",
        "device": "a CPU",
        "threads": 2,
        "over_best": ratios,
        "curves": {k: {**curve, "over_pool": [2 * r, r]} for k, r in ratios.items()},
    }


BLOCKS = [block("a", 1, genetic=1.1, grid=3.0), block("b", 1, genetic=1.2, grid=2.0)]


def test_a_row_has_ranks_and_what_was_found_at_equal_seconds():
    rows = {(row["name"], row["judge"]): row for row in strategy_rows.rows(BLOCKS)}
    assert len(rows) == len(KEYS)
    genetic, grid = rows["genetic", "none"], rows["grid", "none"]
    assert genetic["rank"][0] == 1.0
    assert grid["rank"][0] == len(KEYS)
    assert genetic["over_best"][0] == pytest.approx((1.1 * 1.2) ** 0.5, abs=1e-4)
    # At a second and a half the first trial alone is known.
    assert genetic["over_pool_at_equal_seconds"][0] == pytest.approx(
        2 * genetic["over_best"][0], abs=1e-3
    )
    assert (genetic["tasks"], genetic["seeds"], genetic["blocks"]) == (2, 1, 2)


def test_what_a_search_took_along_twice_counts_as_nothing_found(tmp_path):
    from types import SimpleNamespace

    task: Any = SimpleNamespace(info=SimpleNamespace(workload="w"))
    begun = {
        "began": True,
        "name": "metaschedule",
        "judge": "xgboost",
        "trials": 8,
        "seed": 1,
        "task": "w",
    }
    (tmp_path / "runs.jsonl").write_text(json.dumps(begun) + "\n")
    assert not strategies.earlier_runs(tmp_path, task, 1, 8)
    (tmp_path / "runs.jsonl").write_text(2 * (json.dumps(begun) + "\n") + '{"torn')
    run = strategies.earlier_runs(tmp_path, task, 1, 8)["metaschedule", "xgboost"]
    assert run.point is None
    assert run.best_s == []


def test_seeds_of_a_task_are_no_further_tasks():
    again = [*BLOCKS, block("a", 2, genetic=1.1, grid=3.0), block("b", 2, genetic=1.2, grid=2.0)]
    once, twice = (strategy_rows.beside(found, "grid, none") for found in (BLOCKS, again))
    assert once == twice
    assert strategy_rows.beside(BLOCKS, "grid, none", "grid, none") == [1.0, 1.0, 1.0]

"""The study: rows out of complete tasks and seeds, what a kill leaves."""

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

"""What the study was to show, line by line, and what it found."""

from __future__ import annotations

import math
import statistics
from typing import Any

from benchmarks.comparison import strategy_rows
from fewtune.options import TuneOptions
from fewtune.search import Knowledge, make_strategy
from tests import recorded

# Targets of the study.
_GENETIC_WINS = 6 / 8
_CHAMELEON, _AGENT, _CORRELATION, _BEST_OF_8 = 1.05, 0.25, 0.3, 1.10


def verdicts(found: dict[str, Any], blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a target: what was to be reached, whether it was, and the figures."""
    rows = []
    trials = blocks[0]["trials"] if blocks else 0
    if blocks:
        won, of = strategy_rows.wins(blocks, "genetic, none", "random, none")
        rows.append(
            _row(
                "genetic better than random on 6 of 8 tasks",
                won >= _GENETIC_WINS * of,
                f"{won} of {of} tasks, {trials} trials",
            )
        )
        rows += [_chameleon(blocks, judge) for judge in ("xgboost", "predictor")]
    rows += _models(found["cost_models"])
    return rows


def _row(line: str, met: bool, told: str) -> dict[str, Any]:
    return {"name": line, "line": line, "met": bool(met), "found": told}


def grid_verdict() -> dict[str, Any]:
    """Walk the whole recorded space by grid: a verdict of its own, for it takes a while."""
    space = recorded.space()
    options = TuneOptions(strategy="grid", batch_size=64, informed_start=False)
    search = make_strategy(space, Knowledge(), options, 1)
    visited = []
    while batch := search.next_batch(64):
        times_s = [recorded.times_s()[proposal.point] for proposal in batch]
        visited += [proposal.point for proposal in batch]
        search.learn(batch, times_s)
    known = recorded.times_s()
    best_s = min(known.values())
    reached = min((known[point] for point in visited), default=math.inf)
    once = len(visited) == len(set(visited))
    return _row(
        "grid visits each point once and finds the recorded optimum",
        once and reached == best_s,
        f"{len(set(visited))} of {len(known)} recorded points in {len(visited)} trials, best "
        f"{reached / best_s:.3f} of the optimum",
    )


def _chameleon(blocks: list[dict[str, Any]], judge: str) -> dict[str, Any]:
    first, second = f"chameleon, {judge}", f"annealing, {judge}"
    ratios = [b["over_best"][first] / b["over_best"][second] for b in blocks]
    middle, low, high = strategy_rows.bounds(ratios)
    part = statistics.fmean(
        b["curves"][first]["search_s"] / max(b["curves"][first]["at_s"][-1], 1e-9)
        for b in blocks
        if b["curves"][first]["at_s"]
    )
    return _row(
        f"chameleon within 5 % of annealing, its agent at most a quarter of the time ({judge})",
        middle <= _CHAMELEON and part <= _AGENT,
        f"{middle:.3f} [{low:.3f} - {high:.3f}] times annealing's; its whole search, agent "
        f"included, {100 * part:.0f} % of the time",
    )


def _models(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    by_name = {(row["name"], "pools" in row): row for row in rows if "rank_correlation" in row
               and ("pools" in row or row["on"].startswith("recorded"))}  # fmt: skip
    lines = []
    for pooled, where in ((False, "recorded task"), (True, "held-out tasks, measured")):
        analytic = by_name.get(("predefined", pooled))
        if analytic:
            lines.append(
                _row(
                    f"predefined: rank correlation 0.3, best 8 within 10 % ({where})",
                    analytic["rank_correlation"] >= _CORRELATION
                    and analytic["best_of_8"] <= _BEST_OF_8,
                    f"{analytic['rank_correlation']:.2f}, best of 8 {analytic['best_of_8']:.3f}",
                )
            )
        graphs = by_name.get(("gcn", pooled))
        trees = by_name.get(("xgboost (stock features)", pooled))
        if graphs and trees:
            lines.append(
                _row(
                    f"gcn ranks at least as well as xgboost ({where})",
                    graphs["rank_correlation"] >= trees["rank_correlation"],
                    f"{graphs['rank_correlation']:.2f} and {trees['rank_correlation']:.2f}",
                )
            )
    return lines

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
_GENETIC_WINS, _TASKS = 6, 8
_ONESHOT_S, _ONESHOT_MEAN, _ONESHOT_LEAST, _ONESHOT_MODELS = 3.0, 90, 80, 7
# The models whose seconds are judged; of the others they are told.
_ONESHOT_TIMED = {"squeezenet_v1_1": "SqueezeNet", "resnet50_v1": "ResNet 50"}
_CHAMELEON, _AGENT, _CORRELATION, _BEST_OF_8 = 1.05, 0.25, 0.3, 1.10


def verdicts(
    found: dict[str, Any], blocks: list[dict[str, Any]], oneshot: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """One row a target: what was to be reached, whether it was, the figures, and why not.

    Parameters
    ----------
    found : dict
        ``cost_models`` of the study.
    blocks : list of dict
        Complete tasks and seeds (`benchmarks.comparison.strategies.blocks`).
    oneshot : list of dict
        Of ``results/oneshot.json``.
    """
    rows = []
    if blocks:
        rows.append(_genetic(blocks))
        rows += [_chameleon(blocks, judge) for judge in ("xgboost", "predictor")]
    rows += _models(found["cost_models"])
    return rows + _oneshot(oneshot)


def _row(line: str, met: bool | None, found: str, because: str = "") -> dict[str, Any]:
    """A verdict; None where what was measured does not tell."""
    return {"name": line, "line": line, "met": met, "found": found, "because": because}


def _genetic(blocks: list[dict[str, Any]]) -> dict[str, Any]:
    won, of = strategy_rows.wins(blocks, "genetic, none", "random, none")
    met = None if won < _GENETIC_WINS <= won + _TASKS - of else won >= _GENETIC_WINS
    return _row(
        f"genetic better than random on {_GENETIC_WINS} of {_TASKS} tasks",
        met,
        f"{won} of {of} tasks, {blocks[0]['trials']} trials, {_seeds(blocks)}",
        f"{_TASKS - of} of {_TASKS} tasks are not measured yet" if met is None else "",
    )


def _seeds(blocks: list[dict[str, Any]]) -> str:
    count = len({block["seed"] for block in blocks})
    return f"{count} seed{'s' * (count > 1)}"


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
    middle, low, high = strategy_rows.beside(blocks, first, second)
    ran = [b["curves"][first] for b in blocks if b["curves"][first]["at_s"]]
    part = statistics.fmean(each["search_s"] / max(each["at_s"][-1], 1e-9) for each in ran)
    met: bool | None = high <= _CHAMELEON and part <= _AGENT
    because = []
    if part > _AGENT:
        measuring_s = statistics.median(each["at_s"][-1] - each["search_s"] for each in ran)
        search_s = statistics.median(each["search_s"] for each in ran)
        because.append(
            f"{blocks[0]['trials']} trials of a task are built and measured in {measuring_s:.1f} s "
            f"here, beside which {search_s:.1f} s of search are much (medians)"
        )
    if low <= _CHAMELEON < high:
        because.append(f"{len(ran)} searches do not tell whether it is within 5 %")
        met = None if part <= _AGENT else False
    return _row(
        f"chameleon within 5 % of annealing, its agent at most a quarter of the time ({judge})",
        met,
        f"{middle:.3f} [{low:.3f} - {high:.3f}] times annealing's; its whole search, agent "
        f"included, {100 * part:.0f} % of the time, mean over tasks",
        "; ".join(because),
    )


_PLACES = {
    "recorded": "recorded task",
    "pools": "held-out tasks, points of all strategies",
    "logs": "held-out shapes, trials of full tuning",
}
_WHY_PREDEFINED = {
    "recorded": "the task lasts 40 ns, most of which is no arithmetic: the model knows no cost of "
    "a call or of a loop's beginning",
    "logs": "trials of a tuned search are alike in what the model knows: what is left between "
    "them is what it leaves out",
}


def _models(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    lines = []
    for part, where in _PLACES.items():
        there = {row["name"]: row for row in rows if _part(row) == part}
        analytic, graphs = there.get("predefined"), there.get("gcn")
        trees = there.get("xgboost (stock features)")
        if analytic:
            met = (
                analytic["rank_correlation"] >= _CORRELATION and analytic["best_of_8"] <= _BEST_OF_8
            )
            lines.append(
                _row(
                    f"predefined: rank correlation 0.3, best 8 within 10 % ({where})",
                    met,
                    f"{_ranks(analytic)}, best of 8 {analytic['best_of_8']:.3f}",
                    "" if met else _WHY_PREDEFINED.get(part, ""),
                )
            )
        if graphs and trees:
            met = graphs["rank_correlation"] >= trees["rank_correlation"]
            (_, low, high), (_, least, most) = _interval(graphs), _interval(trees)
            overlaps = low <= most and least <= high
            lines.append(
                _row(
                    f"gcn ranks at least as well as xgboost ({where})",
                    met,
                    f"{_ranks(graphs)} and {_ranks(trees)}",
                    "their intervals overlap: the two cannot be told apart" if overlaps else "",
                )
            )
    return lines


def _part(row: dict[str, Any]) -> str | None:
    if "rank_correlation" not in row:
        return None
    for part in ("pools", "logs"):
        if part in row:
            return part
    return "recorded" if row["on"].startswith("recorded") else None


def _interval(row: dict[str, Any]) -> tuple[float, float, float]:
    low, high = row["rank_correlation_ci"]
    return row["rank_correlation"], low, high


def _ranks(row: dict[str, Any]) -> str:
    return "{:.2f} [{:.2f} - {:.2f}]".format(*_interval(row))


def _oneshot(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if not rows:
        return []
    achieved = [row["achieved_pct"] for row in rows]
    mean = statistics.geometric_mean(achieved)
    names = ", ".join(row["model"] for row in rows)
    seconds = {row["model"]: row["seconds"] for row in rows}
    timed = [seconds[name] for name in _ONESHOT_TIMED if name in seconds]
    least = min(rows, key=lambda row: row["x_onnxruntime"])
    few = f"{len(rows)} of {_ONESHOT_MODELS} models are measured: {names}"
    missing = few if len(rows) < _ONESHOT_MODELS else ""
    return [
        _row(
            f"one-shot in at most {_ONESHOT_S:g} s ({', '.join(_ONESHOT_TIMED.values())})",
            len(timed) == len(_ONESHOT_TIMED) and max(timed) <= _ONESHOT_S,
            ", ".join(f"{each:.2f} s ({name})" for name, each in seconds.items()),
            missing,
        ),
        _row(
            "one-shot at 90 % of full tuning in the mean, at least 80 % everywhere",
            mean >= _ONESHOT_MEAN and min(achieved) >= _ONESHOT_LEAST,
            f"geometric mean {mean:.1f} %, least {min(achieved):.1f} %",
            missing,
        ),
        _row(
            "one-shot never slower than onnxruntime",
            least["x_onnxruntime"] >= 1,
            f"at least {least['x_onnxruntime']:.2f} times as fast ({least['model']})",
            missing,
        ),
    ]

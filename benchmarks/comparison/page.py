"""``docs/study.md``, made of ``results/study.json``: each part a table, then its notes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.comparison.pictures import MEASURED, RECORDED
from benchmarks.comparison.replay import AT
from fewtune.util.table import Table, number

_HEAD = """# Strategies and cost models side by side

Made by `python benchmarks/study.py` from `results/study.json`. Figures in brackets are bounds of
95 % confidence intervals. Rows whose intervals overlap cannot be told apart; a difference whose
interval holds 0, or a ratio whose interval holds 1, is noise. Seconds of replayed parts are of a
machine that may have been busy: compare within a table only.
"""


def page(found: dict[str, Any]) -> str:
    """What was to be reached, then the tables."""
    rows, models = found["strategies"], found["cost_models"]
    parts = [_HEAD]
    if found.get("accepted"):
        parts.append(_reached(found["accepted"]))
    recorded = [row for row in rows if "over_optimum" in row]
    parts += [_recorded(recorded)] if recorded else []
    measured = [row for row in rows if "over_best" in row]
    parts.append(_measured_table(measured) if measured else _MISSING_STRATEGIES)
    ranked = [row for row in models if "rank_correlation" in row]
    parts.append(_cost_models([row for row in ranked if "sampling" not in row]))
    sampled = [row for row in ranked if "sampling" in row]
    parts += [_sampling(sampled)] if sampled else []
    whole = [row for row in models if "achieved_pct" in row]
    parts.append(_whole_models(whole, found["selections"]) if whole else _MISSING_MODELS)
    parts.append(_selections(found["selections"]) if found["selections"] else _MISSING_SELECTIONS)
    return "\n".join(parts)


def _reached(rows: list[dict[str, Any]]) -> str:
    said = {True: "yes", False: "no", None: "unknown"}
    lines = [[r["line"], said[r["met"]], r["found"], r.get("because", "")] for r in rows]
    table = Table(["target", "reached", "found", "because"], lines, frozenset({0, 1, 2, 3}))
    return f"## What was to be reached\n\n{table.markdown()}\n"


def _recorded(rows: list[dict[str, Any]]) -> str:
    table = Table(
        ["strategy", "rated by", *(f"{trials} trials" for trials in AT), "search s"],
        [
            [
                row["name"],
                row["judge"],
                *(_bounds(row["over_optimum"][str(trials)]) for trials in AT),
                number(row["search_s"]),
            ]
            for row in rows
        ],
        frozenset({0, 1}),
    )
    return (
        f"## Strategies on a recorded task\n\n{table.markdown()}\n\nThe best found over the "
        f"optimum, by {rows[0]['seeds']} seeds. Every schedule of a small matrix product was "
        "measured once; a search replays that. Strategies without a model start from random "
        "points.\nThe task is small: one step of its clock, 10 ns, is a quarter of the optimum. "
        "1.000 is the optimum, and 1.250 the next time that there is.\n\n"
        f"![Best so far by trials]({RECORDED})\n"
    )


def _measured_table(rows: list[dict[str, Any]]) -> str:
    first = rows[0]
    trials = sorted(first.get("over_pool", {}), key=int)
    ordered = sorted(rows, key=lambda row: row["rank"][0])
    table = Table(
        ["strategy", "rated by", "over the best of all", "over the first row",
         *(f"{t} trials" for t in trials), f"{first['equal_s']} s", "rank", "tuning s", "search s"],
        [
            [
                row["name"],
                row["judge"],
                _bounds(row["over_best"]),
                _bounds(row["over_first"]) if "over_first" in row else "-",
                *(f"{row['over_pool'][count][0]:.3f}" for count in trials),
                f"{row['over_pool_at_equal_seconds'][0]:.3f}",
                "{:.1f} [{:.1f} - {:.1f}]".format(*row["rank"]),
                number(row["tuning_s"]),
                number(row["search_s"]),
            ]
            for row in ordered
        ],
        frozenset({0, 1}),
    )  # fmt: skip
    slower = [row for row in ordered if row.get("over_first", [1, 1, 1])[1] > 1]
    names = ", ".join(_label(row) for row in slower) or "none"
    return (
        f"## Strategies on tasks of networks, measured\n\n{table.markdown()}\n\n"
        f"Told apart from the first row (slower, the interval of the ratio does not hold 1): "
        f"{names}. Between the others there is nothing but noise.\n\n"
        f"{first['tasks']} tasks of SqueezeNet and ResNet 50, {first['trials']} trials, "
        f"{first['seeds']} seed(s), {first['blocks']} searches each; {first['device']}, "
        f"{first['threads']} threads, {first['date']}. Intervals are over tasks, each the mean of "
        'its seeds.\n"Over the best of all": the strategies\' best schedules, taken in turns. '
        "By trials and seconds: the best so far over the best of all points that anyone measured, "
        "after so many trials, and when each had had the seconds that the quickest needed. Rank: "
        "1 is the best. A point is measured once and charged to each strategy that proposes it."
        f"\n\n![Best so far by trials and by seconds]({MEASURED})\n"
    )


def _label(row: dict[str, Any]) -> str:
    return row["name"] if row["judge"] == "none" else f"{row['name']} ({row['judge']})"


def _cost_models(rows: list[dict[str, Any]]) -> str:
    table = Table(
        ["model", "on", "tasks", "rank correlation", "best of 1", "of 3", "of 8", "us a point",
         "train s"],
        [
            [
                row["name"],
                row["on"],
                str(row["tasks"]),
                _ranks(row),
                *_bests(row),
                number(row.get("us_a_point")),
                number(row.get("train_s")),
            ]
            for row in rows
        ],
        frozenset({0, 1}),
    )  # fmt: skip
    return (
        f"## Cost models\n\n{table.markdown()}\n\nBest of 1, 3, 8: the fastest of so many that "
        "are rated best, over the fastest of all that were measured. Trials of a search lie near "
        "its optimum, so that rank correlations on them are low; unbiased draws spread over the "
        "whole space. `lots` draws at random: what it reaches takes no model.\n"
    )


def _sampling(rows: list[dict[str, Any]]) -> str:
    table = Table(
        ["learnt from", "on", "trials", "rank correlation", "more than by lots", "best of 1",
         "of 3", "of 8", "train s"],
        [
            [
                row["name"].removeprefix("decision predictor, "),
                row["on"].split(",")[0],
                str(row["trials"]),
                _ranks(row),
                "{:+.3f} [{:+.3f} - {:+.3f}]".format(*row["over_lots"])
                if "over_lots" in row
                else "-",
                *_bests(row),
                number(row["train_s"]),
            ]
            for row in rows
        ],
        frozenset({0, 1}),
    )  # fmt: skip
    return (
        f"## What to train a predictor on\n\n{table.markdown()}\n\nEach rule keeps 40 % of one "
        "practice run's trials (`fewtune predictor train --most-trials N --sampling RULE`), so "
        "that trainings take as long, and is judged on usual shapes that no training sees. More "
        "than by lots: mean difference in rank correlation, on the same tasks, from as many "
        "tasks or trials drawn by lots. Rules choose from what a search had measured; random "
        "schedules, which the One-Shot Tuner's exploration is held to, are not among it: the walk "
        "says what exploration adds to exploration.\n"
    )


def _ranks(row: dict[str, Any]) -> str:
    low, high = row["rank_correlation_ci"]
    return f"{row['rank_correlation']:.2f} [{low:.2f} - {high:.2f}]"


def _bests(row: dict[str, Any]) -> list[str]:
    return [f"{row[f'best_of_{top}']:.3f}" for top in (1, 3, 8)]


def _whole_models(rows: list[dict[str, Any]], selections: list[dict[str, Any]]) -> str:
    headings = ["model", "rated by", "trials", "tuning s", "achieved %", "estimate ms",
                "estimate ms, equal s", "equal s"]  # fmt: skip
    lines = [
        [
            row["model"],
            row["name"],
            str(row["trials"]),
            number(row["tuning_s"]),
            number(row["achieved_pct"]),
            number(row["estimate_ms"]),
            number(row["estimate_at_equal_s_ms"]),
            number(row["equal_s"]),
        ]
        for row in rows
    ]
    return (
        "## Cost models on whole models, measured\n\n"
        f"{Table(headings, lines, frozenset({0, 1})).markdown()}\n\n"
        "Every task is searched with the same few trials. Achieved: full tuning's heavy kernels "
        "over these, measured in turns. Estimates are of the search's own measurements. Each is "
        f"one run{_as_noisy(selections)}.\n"
    )


def _as_noisy(selections: list[dict[str, Any]]) -> str:
    """What equal runs on whole models differ by, as far as selections tell."""
    pairs: dict[str, list[float]] = {}
    for row in selections:
        if row["name"] in ("cliques", "cliques again"):
            pairs.setdefault(row["model"], []).append(row["achieved_pct"])
    apart = [max(pair) - min(pair) for pair in pairs.values() if len(pair) > 1]
    if not apart:
        return ""
    return (
        f": two equal selections below differ by up to {max(apart):.1f} points, and less than "
        "that tells nothing here"
    )


def _selections(rows: list[dict[str, Any]]) -> str:
    headings = ["model", "selection", "representatives", "trials", "used time %", "achieved %"]
    lines = [
        [
            row["model"],
            row["name"],
            str(row.get("representatives", "-")),
            str(row["trials"]),
            number(row["used_time_pct"]),
            number(row["achieved_pct"]),
        ]
        for row in rows
    ]
    return (
        f"## Selections, measured\n\n{Table(headings, lines, frozenset({0, 1})).markdown()}\n\n"
        f"{_noise(rows)}\n\nRepresentatives' trials come from the full run's log, and are "
        "charged with what they took there; sharing is done anew, without finals in the model. "
        "Achieved: full tuning's heavy kernels over these, measured in turns. The last line of a "
        "model selects nothing: about as many trials as cliques, spread over all tasks, by the "
        "predictor.\n"
    )


def _noise(rows: list[dict[str, Any]]) -> str:
    """What two equal ways differ by, and who differs from them by more."""
    said = []
    for model in dict.fromkeys(row["model"] for row in rows):
        achieved = {row["name"]: row["achieved_pct"] for row in rows if row["model"] == model}
        if not {"cliques", "cliques again"} <= achieved.keys():
            continue
        low, high = sorted((achieved["cliques"], achieved["cliques again"]))
        apart = high - low
        beyond = [
            f"{name} ({value:.1f} %)"
            for name, value in achieved.items()
            if value > high + apart or value < low - apart
        ]
        said.append(
            f"{model}: two runs of `cliques` differ by {apart:.1f} points; beyond as much on "
            f"either side is {', '.join(beyond) or 'none: these selections cannot be told apart'}."
        )
    return "\n".join(said)


def _bounds(values: Sequence[float]) -> str:
    middle, low, high = values
    return f"{middle:.3f} [{low:.3f} - {high:.3f}]"


_MISSING_STRATEGIES = (
    "## Strategies on tasks of networks\n\nNot measured yet: `python benchmarks/study.py "
    "--measured`.\n"
)
_MISSING_MODELS = (
    "## Cost models on whole models\n\nNot measured yet: `python benchmarks/study.py "
    "--measured --parts cost_models`. TVM's own `mlp` needs PyTorch, which fewtune does not "
    "install.\n"
)
_MISSING_SELECTIONS = (
    "## Selections\n\nNot measured yet: `python benchmarks/study.py --measured --parts "
    "selections`.\n"
)

"""``docs/study.md`` and its pictures, made of ``results/study.json``."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.comparison.replay import AT
from fewtune.util.table import Table, number

RECORDED, MEASURED = "study.png", "study_measured.png"
_STYLES = {"none": ":", "xgboost": "-", "predefined": "--", "predictor": "--"}
_HEAD = """# Strategies and cost models side by side

Made by `python benchmarks/study.py` from `results/study.json`. Bounds in brackets are
95 % confidence intervals; rows whose intervals overlap cannot be told apart. Seconds of
replayed parts are of a machine that may have been busy: compare within a table only.
"""


def pictures(found: dict[str, Any], blocks: list[dict[str, Any]]) -> dict[str, bytes]:
    """PNG by file name: strategies on the recorded task, and measured ones where there are."""
    recorded = [row for row in found["strategies"] if "curve" in row]

    def replayed(axes: list[Axes]) -> None:
        for row in recorded:
            steps = range(1, len(row["curve"]) + 1)
            axes[0].plot(steps, row["curve"], _STYLES[row["judge"]], label=_label(row))
        axes[0].set_xlabel("trials")
        axes[0].set_ylabel("best so far over the recorded optimum")

    made = {RECORDED: _drawn(1, replayed)}
    if blocks:
        made[MEASURED] = _drawn(2, lambda axes: _measured(axes, blocks))
    return made


def _measured(axes: list[Axes], blocks: list[dict[str, Any]]) -> None:
    last_s = float(np.median([b["curves"][k]["at_s"][-1] for b in blocks for k in b["curves"]
                              if b["curves"][k]["at_s"]]))  # fmt: skip
    grid_s = np.linspace(0.0, 2 * last_s, 80)
    for key in blocks[0]["over_best"]:
        curves = [block["curves"][key] for block in blocks if key in block["curves"]]
        curves = [curve for curve in curves if curve["over_pool"]]
        if not curves:
            continue
        style = _STYLES[key.split(", ")[1]]
        most = max(len(curve["over_pool"]) for curve in curves)
        by_trial = [c["over_pool"] + c["over_pool"][-1:] * (most - len(c["over_pool"]))
                    for c in curves]  # fmt: skip
        axes[0].plot(range(1, most + 1), np.exp(np.log(by_trial).mean(axis=0)), style, label=key)
        by_second = [
            np.array([10.0, *c["over_pool"]])[np.searchsorted(c["at_s"], grid_s, side="right")]
            for c in curves
        ]
        axes[1].plot(grid_s, np.exp(np.log(by_second).mean(axis=0)), style, label=key)
    for axis, label in zip(axes, ("trials", "seconds"), strict=True):
        axis.set_xlabel(label)
        axis.set_ylabel("best so far over the best of all")
        axis.set_ylim(1.0, 3.0)


def _drawn(panels: int, draw: Callable[[list[Axes]], None]) -> bytes:
    figure = Figure(figsize=(8 * panels, 5))
    FigureCanvasAgg(figure)
    axes = [figure.add_subplot(1, panels, place + 1) for place in range(panels)]
    draw(axes)
    if axes[0].get_legend_handles_labels()[0]:
        axes[0].legend(fontsize=7)
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=120, metadata={"Software": None})
    return stream.getvalue()


def _label(row: dict[str, Any]) -> str:
    return row["name"] if row["judge"] == "none" else f"{row['name']}, {row['judge']}"


def page(found: dict[str, Any]) -> str:
    """The tables, and what they do not say."""
    rows = found["strategies"]
    parts = [_HEAD, _recorded([row for row in rows if "over_optimum" in row])]
    measured = [row for row in rows if "over_best" in row]
    parts.append(_measured_table(measured) if measured else _MISSING_STRATEGIES)
    parts.append(_cost_models([row for row in found["cost_models"] if "rank_correlation" in row]))
    whole = [row for row in found["cost_models"] if "achieved_pct" in row]
    parts.append(_whole_models(whole) if whole else _MISSING_MODELS)
    parts.append(_selections(found["selections"]) if found["selections"] else _MISSING_SELECTIONS)
    if found.get("accepted"):
        lines = [
            [each["line"], "yes" if each["met"] else "no", each["found"]]
            for each in found["accepted"]
        ]
        parts += [
            "## What was to be reached\n",
            Table(["target", "reached", "found"], lines, frozenset({0, 1, 2})).markdown(),
        ]
    return "\n".join(parts) + "\n"


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
        "## Strategies on a recorded task\n\nEvery schedule of a small matrix product was measured "
        f"once; a search replays that, with\n{rows[0]['seeds']} seeds. Strategies without a model "
        "start from random points.\nFigures are the best found over the optimum. The task is "
        "small: one step of its clock, 10 ns, is a quarter of the optimum.\n\n"
        f"{table.markdown()}\n\n![Best so far by trials]({RECORDED})\n"
    )


def _measured_table(rows: list[dict[str, Any]]) -> str:
    first = rows[0]
    trials = list(first.get("over_pool", {}))
    table = Table(
        ["strategy", "rated by", "over the best of all", *(f"{t} trials" for t in trials),
         f"{first['equal_s']} s", "rank", "tuning s", "search s"],
        [
            [
                row["name"],
                row["judge"],
                _bounds(row["over_best"]),
                *(f"{row['over_pool'][count][0]:.3f}" for count in trials),
                f"{row['over_pool_at_equal_seconds'][0]:.3f}",
                "{:.1f} [{:.1f} - {:.1f}]".format(*row["rank"]),
                number(row["tuning_s"]),
                number(row["search_s"]),
            ]
            for row in sorted(rows, key=lambda row: row["rank"][0])
        ],
        frozenset({0, 1}),
    )  # fmt: skip
    return (
        f"## Strategies on tasks of networks, measured\n\n{first['tasks']} tasks of SqueezeNet and "
        f"ResNet 50, {first['trials']} trials, {first['seeds']} seed(s), {first['blocks']} "
        f'searches each; {first["device"]}, {first["threads"]} threads, {first["date"]}.\n"Over '
        "the best of all\": the strategies' best schedules, taken in turns. The columns after it: "
        "best so far over the best of all points that anyone measured, after so many trials, and "
        "when each had had the seconds that the quickest needed. Rank: 1 is the best, mean over "
        "tasks and seeds. A point is measured once and charged to each strategy that proposes "
        f"it.\n\n{table.markdown()}\n\n![Best so far by trials and by seconds]({MEASURED})\n"
    )


def _cost_models(rows: list[dict[str, Any]]) -> str:
    table = Table(
        ["model", "on", "rank correlation", "best of 1", "of 3", "of 8", "us a point", "train s"],
        [
            [
                row["name"],
                row["on"],
                f"{row['rank_correlation']:.2f} [{row['rank_correlation_ci'][0]:.2f} - "
                f"{row['rank_correlation_ci'][1]:.2f}]",
                *(f"{row[f'best_of_{top}']:.3f}" for top in (1, 3, 8)),
                number(row.get("us_a_point")),
                number(row.get("train_s")),
            ]
            for row in rows
        ],
        frozenset({0, 1}),
    )
    return (
        "## Cost models\n\nBest of 1, 3, 8: the fastest of so many that are rated best, over the "
        "fastest of all that were measured. Trials of a search lie near its optimum, so that rank "
        "correlations on them are low; unbiased draws spread over the whole space.\n\n"
        f"{table.markdown()}\n"
    )


def _whole_models(rows: list[dict[str, Any]]) -> str:
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
        "## Cost models on whole models, measured\n\nEvery task is searched with the same few "
        "trials. Achieved: full tuning's heavy kernels over these, measured in turns. Estimates "
        "are of the search's own measurements.\n\n"
        f"{Table(headings, lines, frozenset({0, 1})).markdown()}\n"
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
        "## Selections, measured\n\nRepresentatives' trials come from the full run's log, and are "
        "charged with what they took there; sharing is done anew, without finals in the model. "
        "Achieved: full tuning's heavy kernels over these, measured in turns. What two runs of "
        "`cliques` differ by is noise. The last line of a model selects nothing: about as many "
        "trials as cliques, spread over all tasks, by the predictor.\n\n"
        f"{Table(headings, lines, frozenset({0, 1})).markdown()}\n"
    )


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

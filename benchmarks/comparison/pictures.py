"""Pictures of the study: the best so far by trials and by seconds."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

RECORDED, MEASURED = "study.png", "study_measured.png"
_STYLES = {"none": ":", "xgboost": "-", "predefined": "--", "predictor": "--"}


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

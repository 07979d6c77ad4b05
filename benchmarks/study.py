"""Strategies and cost models side by side: ``python benchmarks/study.py``.

Without ``--measured`` nothing is measured (`benchmarks.comparison.replay`): it runs on a busy
machine, and what was measured earlier stands. ``--measured`` has the processor to itself, and ends
within ``--budget-s``: every strategy searches the eight tasks of the engine benchmark
(`benchmarks.comparison.strategies`). What was measured lies in a folder (``--work``); the same
command goes on there, with more seeds.

``results/study.json`` has lists of rows (``strategies``, ``cost_models``), each with a ``name``.
``docs/study.md`` shows its pictures.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

# Run as a script, Python looks beside this file only.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.comparison import replay, strategies, strategy_rows
from benchmarks.helpers.common import alone
from benchmarks.helpers.pictures import drawn
from fewtune.stages.paths import Places
from fewtune.util.files import canonical_json, write_bytes, write_text

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

    made = {RECORDED: drawn(1, replayed)}
    if blocks:
        made[MEASURED] = drawn(2, lambda axes: _measured(axes, blocks))
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


def _label(row: dict[str, Any]) -> str:
    return row["name"] if row["judge"] == "none" else f"{row['name']}, {row['judge']}"


PROJECT = Path(__file__).parents[1]


def measure(arguments: argparse.Namespace) -> None:
    """Search in a process of its own: TVM's search may end it by a segmentation fault."""
    with alone("study"):
        # Waiting for the processor costs nothing of the budget.
        end_s = time.monotonic() + arguments.budget_s
        given = (arguments.work, arguments.tasks, arguments.trials, arguments.most_seeds)
        while (left_s := end_s - time.monotonic()) > 0:
            child = multiprocessing.get_context("spawn").Process(
                target=strategies.measure, args=(*given, left_s)
            )
            child.start()
            child.join()
            if child.exitcode is None or child.exitcode >= 0:
                return
            print(f"a search ended by signal {-child.exitcode}; going on", flush=True)


def main() -> None:
    """Run the parts that are asked for, and write file and pictures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--measured", action="store_true", help="measure, too")
    parser.add_argument("--budget-s", type=float, default=780, help="of what is measured")
    parser.add_argument("--seeds", type=int, default=5, help="on the recorded task")
    parser.add_argument("--tasks", type=int, default=4, help="of each of two models (measured)")
    parser.add_argument("--trials", type=int, default=64, help="of a search (measured)")
    parser.add_argument("--most-seeds", type=int, default=5, help="as the budget lasts")
    parser.add_argument("--work", type=Path, default=Places().scratch / "study", metavar="DIR")
    parser.add_argument("--output", type=Path, default=PROJECT / "results" / "study.json")
    parser.add_argument("--pictures", type=Path, default=PROJECT / "results", metavar="DIR")
    arguments = parser.parse_args()
    earlier = json.loads(arguments.output.read_text()) if arguments.output.is_file() else {}
    if arguments.measured:
        measure(arguments)
    blocks = strategies.blocks(arguments.work, arguments.trials)
    measured = [row for row in earlier.get("strategies", []) if "over_best" in row]
    recorded = replay.strategies_recorded(arguments.seeds)
    models = replay.models_on_recorded(arguments.seeds)
    for file in sorted((PROJECT / "results" / "practice").glob("*.npz")):
        models += replay.models_on_practice(file)
    found = {
        "strategies": recorded + (strategy_rows.rows(blocks) or measured),
        "cost_models": models,
    }
    write_text(arguments.output, canonical_json(found))
    for name, picture in pictures(found, blocks).items():
        write_bytes(arguments.pictures / name, picture)
    print(arguments.output)


if __name__ == "__main__":
    main()

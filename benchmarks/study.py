"""Strategies, cost models and selections side by side: ``python benchmarks/study.py``.

Without ``--measured`` nothing is measured (`benchmarks.comparison.replay`): it runs on a busy
machine, and what was measured earlier stands. ``--measured`` has the processor to itself, and ends
within ``--budget-s``; ``--parts`` says what is measured:

- ``strategies``: every strategy on the eight tasks of the engine benchmark
  (`benchmarks.comparison.strategies`); cost models are held to the points that this measured when
  the study is run without ``--measured`` again, which replays;
- ``selections`` and ``cost_models``: on whole models that were tuned in full in this checkout
  (`benchmarks.comparison.whole_models`).

What was measured lies in a folder (``--work``); the same command goes on there, with more seeds or
more models. ``results/study.json`` has lists of rows (``strategies``, ``cost_models``,
``selections``), each with a ``name``, and ``accepted``, what was to be reached. ``docs/study.md``
and its pictures are made of that file.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from pathlib import Path
from typing import Any

# Run as a script, Python looks beside this file only.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.comparison import (
    accept,
    page,
    replay,
    sampling,
    strategies,
    strategy_rows,
    whole_models,
)
from benchmarks.comparison.pool_models import models_on_pools
from benchmarks.helpers.common import alone
from fewtune.util.files import canonical_json, write_bytes, write_text
from stages.paths import Places

PROJECT = Path(__file__).parents[1]
_PARTS = ("strategies", "selections", "cost_models")
_MODELS = ("squeezenet_v1_1", "mobilenet_v2", "resnet50_v1", "yolov3_mobilenet")
# Cost models end to end: those that the issue of this study names.
_END_TO_END = ("squeezenet_v1_1", "mobilenet_v2")


def measure(arguments: argparse.Namespace, places: Places) -> None:
    """Measure the parts that are asked for, one after the other, within the budget."""
    with alone("study"):
        # Waiting for the processor costs nothing of it.
        end_s = time.monotonic() + arguments.budget_s
        for part in arguments.parts:
            left_s = end_s - time.monotonic()
            if part == "strategies":
                _strategies(arguments, left_s)
                continue
            tuned = sorted(
                path.parents[2].name for path in places.out.glob("*/full/tune/tune.json")
            )
            wanted = arguments.models or (_MODELS if part == "selections" else _END_TO_END)
            kept = arguments.work / f"{part}.json"
            whole_models.measure(part, places, [m for m in wanted if m in tuned], left_s, kept)


def _strategies(arguments: argparse.Namespace, budget_s: float) -> None:
    """In a process of its own: TVM's search may end it by a segmentation fault."""
    end_s = time.monotonic() + budget_s
    while True:
        left_s = end_s - time.monotonic()
        child = multiprocessing.get_context("spawn").Process(
            target=strategies.measure,
            args=(
                arguments.work,
                arguments.tasks,
                arguments.trials,
                arguments.most_seeds,
                left_s,
            ),
        )
        child.start()
        child.join()
        if child.exitcode is None or child.exitcode >= 0 or left_s <= 0:
            return
        print(f"a search ended by signal {-child.exitcode}; going on", flush=True)


def _kept(path: Path, earlier: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows that a measured part left, or those of an earlier study."""
    if not path.is_file():
        return earlier
    return [row for rows in json.loads(path.read_text()).values() for row in rows]


def main() -> None:
    """Run the parts that are asked for, and write file, page and pictures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--measured", action="store_true", help="measure, too")
    parser.add_argument("--parts", nargs="+", choices=_PARTS, default=list(_PARTS))
    parser.add_argument("--budget-s", type=float, default=780, help="of all measured parts")
    parser.add_argument("--seeds", type=int, default=5, help="on the recorded task")
    parser.add_argument("--tasks", type=int, default=4, help="of each of two models (strategies)")
    parser.add_argument("--trials", type=int, default=64, help="of a search (strategies)")
    parser.add_argument("--most-seeds", type=int, default=5, help="as the budget lasts")
    parser.add_argument("--models", nargs="*", default=[], help="tuned in full here")
    parser.add_argument("--skip-replay", action="store_true", help="keep those rows as they are")
    parser.add_argument("--work", type=Path, default=Places().scratch / "study", metavar="DIR")
    parser.add_argument("--output", type=Path, default=PROJECT / "results" / "study.json")
    parser.add_argument("--page", type=Path, default=PROJECT / "docs" / "study.md")
    arguments = parser.parse_args()
    earlier = json.loads(arguments.output.read_text()) if arguments.output.is_file() else {}
    if arguments.measured:
        measure(arguments, Places())
    blocks = strategies.blocks(arguments.work, arguments.trials)
    searched, rated = earlier.get("strategies", []), earlier.get("cost_models", [])
    measured = strategy_rows.rows(blocks) or [row for row in searched if "over_best" in row]
    found = {
        "strategies": [row for row in searched if "over_optimum" in row],
        "cost_models": [row for row in rated if "rank_correlation" in row and "pools" not in row],
        "selections": _kept(arguments.work / "selections.json", earlier.get("selections", [])),
    }
    replays = not arguments.measured and not arguments.skip_replay
    if replays or not found["strategies"]:
        practice = sorted((PROJECT / "results" / "practice").glob("*.npz"))
        found["strategies"] = replay.strategies_recorded(arguments.seeds)
        found["cost_models"] = [
            *replay.models_on_recorded(arguments.seeds),
            *(row for file in practice for row in replay.models_on_practice(file)),
            *(row for file in practice for row in sampling.rows_of(file)),
        ]
    found["strategies"] += measured
    # That takes minutes, and needs no silent machine.
    pooled = []
    if blocks and not arguments.measured:
        pooled = models_on_pools(arguments.work, arguments.tasks)
    found["cost_models"] += pooled or [row for row in rated if "pools" in row]
    whole = [row for row in rated if "achieved_pct" in row]
    found["cost_models"] += _kept(arguments.work / "cost_models.json", whole)
    walked = [row for row in earlier.get("accepted", []) if row["name"].startswith("grid")]
    if not arguments.measured and (replays or not walked):
        walked = [accept.grid_verdict()]
    found["accepted"] = walked + accept.verdicts(found, blocks)
    write_text(arguments.output, canonical_json(found))
    write_text(arguments.page, page.page(found))
    for name, picture in page.pictures(found, blocks).items():
        write_bytes(arguments.page.with_name(name), picture)
    print(f"{arguments.output}, {arguments.page}")


if __name__ == "__main__":
    main()

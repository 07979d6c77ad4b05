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
    pictures,
    replay,
    sampling,
    strategies,
    strategy_rows,
    whole_models,
)
from benchmarks.comparison.held_out import models_on_logs, models_on_pools
from benchmarks.helpers.common import alone
from fewtune.util.files import canonical_json, write_bytes, write_text
from stages.paths import Places

PROJECT = Path(__file__).parents[1]
_PARTS = ("strategies", "selections", "cost_models")
_MODELS = ("squeezenet_v1_1", "mobilenet_v2", "resnet50_v1", "yolov3_mobilenet")
# What is replayed: strategies on the recorded task, and cost models on this and that.
_REPLAYS = ("strategies", "recorded", "practice", "sampling", "pools", "logs")
# Cost models end to end: those that the issue of this study names.
_END_TO_END = ("squeezenet_v1_1", "mobilenet_v2")


def wanted_models(arguments: argparse.Namespace, places: Places, part: str) -> list[str]:
    """Those of a part that were tuned in full here; others are named."""
    wanted = arguments.models or (_MODELS if part == "selections" else _END_TO_END)
    tuned = {path.parents[2].name for path in places.out.glob("*/full/tune/tune.json")}
    for name in wanted:
        if name not in tuned:
            print(f"{part}: {name} is left out, it was not tuned in full here", flush=True)
    return [name for name in wanted if name in tuned]


def say_plan(arguments: argparse.Namespace, places: Places) -> None:
    """Print about how long what is missing of each part takes."""
    for part in arguments.parts:
        if part == "strategies":
            given = (arguments.work, arguments.tasks, arguments.trials, arguments.most_seeds)
            seconds_each = [
                f"seed {n} {s:.0f} s" for n, s in enumerate(strategies.expected_s(*given), 1)
            ]
        else:
            names = wanted_models(arguments, places, part)
            about_s = whole_models.expected_s(part, places, names, _kept_file(arguments, part))
            seconds_each = [f"{name} {seconds:.0f} s" for name, seconds in about_s.items()]
        print(
            f"{part}, at most about: {', '.join(seconds_each) or 'nothing is missing'}", flush=True
        )


def _kept_file(arguments: argparse.Namespace, part: str) -> Path:
    work: Path = arguments.work
    return work / f"{part}.json"


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
            wanted = wanted_models(arguments, places, part)
            whole_models.measure(part, places, wanted, left_s, _kept_file(arguments, part))


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


def models_replayed(
    arguments: argparse.Namespace, replays: list[str], rated: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Rows of cost models: those of the replays that are asked for anew, the others as they are."""
    practice = sorted((PROJECT / "results" / "practice").glob("*.npz"))
    earlier = [row for row in rated if "rank_correlation" in row]
    rows: list[dict[str, Any]] = []
    for part in _REPLAYS[1:]:
        made: list[dict[str, Any]] = []
        if part in replays:
            print(f"replaying {part}", flush=True)
            if part == "recorded":
                made = replay.models_on_recorded(arguments.seeds)
            elif part == "practice":
                made = [row for file in practice for row in replay.models_on_practice(file)]
            elif part == "sampling":
                made = [row for file in practice for row in sampling.rows_of(file)]
            elif part == "pools":
                made = models_on_pools(arguments.work, arguments.tasks)
            else:
                made = models_on_logs(Places())
        # Without pools or logs in this checkout, what another one found stands.
        rows += made or [row for row in earlier if _replay_of(row) == part]
    return rows


def _replay_of(row: dict[str, Any]) -> str:
    """Which replay a cost model's row is of."""
    for part in ("pools", "logs", "sampling"):
        if part in row:
            return part
    return "recorded" if row["on"].startswith("recorded") else "practice"


def _kept(path: Path, earlier: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows that a measured part left, or those of an earlier study."""
    if not path.is_file():
        return earlier
    return [row for rows in json.loads(path.read_text()).values() for row in rows]


def main() -> None:
    """Run the parts that are asked for, and write file, page and pictures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--measured", action="store_true", help="measure, too")
    parser.add_argument("--plan", action="store_true", help="say how long that takes, and end")
    parser.add_argument("--parts", nargs="+", choices=_PARTS, default=list(_PARTS))
    parser.add_argument("--budget-s", type=float, default=780, help="of all measured parts")
    parser.add_argument("--seeds", type=int, default=5, help="on the recorded task")
    parser.add_argument("--tasks", type=int, default=4, help="of each of two models (strategies)")
    parser.add_argument("--trials", type=int, default=64, help="of a search (strategies)")
    parser.add_argument("--most-seeds", type=int, default=5, help="as the budget lasts")
    parser.add_argument("--models", nargs="*", default=[], help="tuned in full here")
    parser.add_argument(
        "--replays",
        nargs="*",
        choices=_REPLAYS,
        help="which to do anew; other rows stay (all, or none with --measured)",
    )
    parser.add_argument("--work", type=Path, default=Places().scratch / "study", metavar="DIR")
    parser.add_argument("--output", type=Path, default=PROJECT / "results" / "study.json")
    parser.add_argument("--page", type=Path, default=PROJECT / "docs" / "study.md")
    arguments = parser.parse_args()
    earlier = json.loads(arguments.output.read_text()) if arguments.output.is_file() else {}
    if arguments.plan or arguments.measured:
        say_plan(arguments, Places())
    if arguments.plan:
        return
    if arguments.measured:
        measure(arguments, Places())
    blocks = strategies.blocks(arguments.work, arguments.trials)
    searched, rated = earlier.get("strategies", []), earlier.get("cost_models", [])
    replays = arguments.replays
    if replays is None:
        replays = [] if arguments.measured else list(_REPLAYS)
    walked = [row for row in earlier.get("accepted", []) if row["name"].startswith("grid")]
    recorded = [row for row in searched if "over_optimum" in row]
    if "strategies" in replays:
        recorded, walked = replay.strategies_recorded(arguments.seeds), [accept.grid_verdict()]
    whole = [row for row in rated if "achieved_pct" in row]
    found = {
        "strategies": recorded
        + (strategy_rows.rows(blocks) or [row for row in searched if "over_best" in row]),
        "cost_models": models_replayed(arguments, replays, rated)
        + _kept(_kept_file(arguments, "cost_models"), whole),
        "selections": _kept(_kept_file(arguments, "selections"), earlier.get("selections", [])),
    }
    oneshot = PROJECT / "results" / "oneshot.json"
    found["accepted"] = walked + accept.verdicts(found, blocks, json.loads(oneshot.read_text()))
    write_text(arguments.output, canonical_json(found))
    write_text(arguments.page, page.page(found))
    for name, picture in pictures.pictures(found, blocks).items():
        write_bytes(arguments.page.with_name(name), picture)
    print(f"{arguments.output}, {arguments.page}")


if __name__ == "__main__":
    main()

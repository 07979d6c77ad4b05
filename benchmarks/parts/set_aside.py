"""What tasks that are set aside would gain: ``python benchmarks/parts/set_aside.py MODEL ...``.

Pools, softmaxes, transforms and copies keep a default schedule, since their families are not
searched, and so do small tasks. Here each such task of a model that was tuned in this checkout
measures its default schedule and random programs of MetaSchedule's design space. Those that are
faster take turns with the default. A row a model is printed, and written to
``results/set_aside.json`` after each.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

# Run as a script, Python looks beside this file only.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from benchmarks.helpers.common import alone
from fewtune.artifacts import BenchmarkReport, Fingerprint, Selection
from fewtune.errors import InputError
from fewtune.measure.device import device_of
from fewtune.measure.measurer import Measurer, module_specs
from fewtune.runtime.target import target_from_json
from fewtune.runtime.tvm import tvm
from fewtune.schedule.defaults.default import default_schedule
from fewtune.schedule.space.search_space import SearchSpace
from fewtune.task.extract import Task, read_tasks
from fewtune.util.files import write_text
from fewtune.util.table import Table, number
from stages.commit import commit
from stages.paths import Places

_STRATEGY = "selective"


class Tried(NamedTuple):
    """One task: its calls, milliseconds by default and by the best program, and the programs."""

    task: str
    operator: str
    calls: int
    default_ms: float
    best_ms: float
    programs: int

    @property
    def saved_ms(self) -> float:
        """Of the model, if the best program were taken."""
        return self.calls * max(0.0, self.default_ms - self.best_ms)


def tried(task: Task, target: tvm.target.Target, measurer: Measurer, draws: int) -> Tried | None:
    """A task's default against random programs, the faster ones in turns; None without a default.

    Parameters
    ----------
    task : Task
    target : Target
    measurer : Measurer
    draws : int
        Random programs at most; equal ones count once.
    """
    default = default_schedule(task.mod, target)
    if default is None:
        return None
    space, random = SearchSpace(task.mod, target), np.random.default_rng(0)
    points = list(dict.fromkeys(space.random_point(random) for _ in range(draws)))
    made = space.make_all(points, range(1, 1 + len(points)))
    modules = [default.mod, *(each.schedule.mod for each in made if each.schedule is not None)]
    specs, info = module_specs(task.mod), task.info
    outcomes = measurer.measure(
        modules, [specs] * len(modules), [None] * len(modules), races=[info.name] * len(modules)
    )
    default_s = outcomes[0].median_s
    if not outcomes[0].run_s:
        return None
    faster = [m for m, o in zip(modules, outcomes, strict=True) if o.median_s < default_s]
    if faster:
        outcomes = measurer.duel(measurer.build([default.mod, *faster]), specs)
    times_ms = [1e3 * outcome.median_s for outcome in (outcomes if faster else outcomes[:1])]
    programs = len(modules) - 1
    return Tried(info.name, info.operator, info.weight, times_ms[0], min(times_ms), programs)


def row_of(model: str, found: Iterable[Tried], model_ms: float) -> dict[str, Any]:
    """A model's row.

    Parameters
    ----------
    model : str
    found : iterable of Tried
    model_ms : float
        Latency of the tuned model.
    """
    tasks = sorted(found, key=lambda each: (-each.saved_ms, each.task))
    return {
        "model": model,
        "tasks": len(tasks),
        "with_choices": sum(each.programs > 1 for each in tasks),
        "default_pct": 100 * sum(each.calls * each.default_ms for each in tasks) / model_ms,
        "saved_pct": 100 * sum(each.saved_ms for each in tasks) / model_ms,
        "saving": [{**each._asdict(), "saved_ms": each.saved_ms} for each in tasks[:3]],
    }


def table_of(rows: list[dict[str, Any]]) -> Table:
    """The rows as a table."""
    headings = ["model", "set aside", "with choices", "% of the model", "% that the best saves"]
    return Table(
        [*headings, "most of it"],
        [
            [
                row["model"],
                str(row["tasks"]),
                str(row["with_choices"]),
                number(row["default_pct"]),
                number(row["saved_pct"]),
                "; ".join(
                    f"{each['task']} {number(each['default_ms'])} to {number(each['best_ms'])} ms"
                    for each in row["saving"]
                    if each["saved_ms"] > 0
                )
                or "-",
            ]
            for row in rows
        ],
        left=frozenset({0, 5}),
    )


def measured(model: str, places: Places, draws: int) -> dict[str, Any]:
    """The row of a model that was tuned in a checkout.

    Raises
    ------
    InputError
        If it was not.
    """
    folder = places.benchmarked(model, _STRATEGY)
    if not (folder / BenchmarkReport.file_name).is_file():
        raise InputError(f"{model} has no result: run `fewtune run {model}` first")
    report = BenchmarkReport.read(folder)
    aside = set(Selection.read(places.selected(model, _STRATEGY)).set_aside)
    tasks = [task for task in read_tasks(places.tasks(model)) if task.info.name in aside]
    fingerprint = Fingerprint.read(places.fingerprint)
    target, device = target_from_json(fingerprint.target), device_of(fingerprint)
    with device.open() as pool:
        measurer = device.measurer(pool, cold_weights=False)
        found = [tried(task, target, measurer, draws) for task in tasks]
    latency_ms = report.variants["tuned"].median_ms
    row = row_of(model, [each for each in found if each is not None], latency_ms)
    return {**row, "draws": draws, "device": fingerprint.device, "commit": commit()}


def main() -> None:
    """Measure the models and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--draws", type=int, default=16, help="random programs a task")
    parser.add_argument("--output", type=Path, default=Path("results/set_aside.json"))
    asked = parser.parse_args()
    rows = []
    with alone("set_aside"):
        for model in asked.models:
            rows.append(measured(model, Places(Path.cwd()), asked.draws))
            write_text(asked.output, json.dumps(rows, indent=1) + "\n")
    table_of(rows).print()


if __name__ == "__main__":
    main()

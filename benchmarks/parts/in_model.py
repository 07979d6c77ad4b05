"""A log's best schedules where the model calls them: ``python benchmarks/parts/in_model.py MODEL``.

After ``fewtune run MODEL --all``. The fastest few of each task, as full tuning's log has them, take
turns in the model, as they do at the end of sharing: what would full tuning gain by that, which
takes each task's fastest alone?
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

# Run as a script, Python looks beside this file only.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.helpers.common import alone
from fewtune.artifacts import BenchmarkReport, Fingerprint, Skeleton
from fewtune.finals.finalists import contested
from fewtune.finals.finals import Final, Finals
from fewtune.measure.measurer import Measurer
from fewtune.runtime.target import target_from_json
from fewtune.runtime.tvm import ms
from fewtune.schedule.space.parallel_axis import usual_axes
from fewtune.storage.database import best_trials, read_database
from fewtune.task.extract import Task, read_tasks
from fewtune.trial.trial import Trial
from fewtune.util.files import canonical_json, write_text
from fewtune.util.table import Table, number
from fewtune.workers.pool import WorkerPool
from stages.paths import Places

# So many times those that meet are looked at: one of them may part the usual axis.
_LOOKED_AT = 4


def hold(
    tasks: list[Task],
    skeleton: Skeleton,
    database: ms.database.Database,
    fingerprint: Fingerprint,
    most: int,
) -> dict[str, Final]:
    """The finals of a log: of ``most`` schedules of each task that takes much of the time."""
    ranked = {}
    for task in tasks:
        records = best_trials(database, task.mod, _LOOKED_AT * most)
        if records:
            ranked[task.info.name] = [Trial.from_record(record) for record in records]
    weights = {task.info.name: task.info.weight for task in tasks}
    times_s = {name: weights[name] * each[0].outcome.median_s for name, each in ranked.items()}
    contenders = contested(ranked, times_s, most, usual_axes(task.info for task in tasks))
    finals = Finals(skeleton, tasks, target_from_json(fingerprint.target), most)
    with WorkerPool(fingerprint.target, fingerprint.threads, fingerprint.threads) as pool:
        return finals.hold(contenders, Measurer(pool)) if contenders else {}


def table(held: dict[str, Final], weights: dict[str, int]) -> Table:
    """Every final as a line, the one that gains most first."""
    headings = ["task", "calls", "contenders", "rank alone", "first ms", "chosen ms", "gained ms"]
    rows = [
        [
            name,
            str(weights[name]),
            str(len(final.keys)),
            str(final.chosen + 1),
            number(final.time_s(0) * 1e3),
            number(final.time_s(final.chosen) * 1e3),
            number(final.gain_s * 1e3),
        ]
        for name, final in sorted(held.items(), key=lambda entry: (-entry[1].gain_s, entry[0]))
    ]
    return Table(headings, rows, frozenset({0}))


def main() -> None:
    """Hold the finals of one log, print them, and write down what they gain."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--strategy", default="full")
    parser.add_argument("--contenders", type=int, default=4)
    parser.add_argument("--results", type=Path, default=Path("results/in_model"))
    arguments = parser.parse_args()
    with alone("in_model"):
        run(arguments)


def run(arguments: argparse.Namespace) -> None:
    """Hold the finals of one log, print them, and write down what they gain."""
    model, strategy, places = arguments.model, arguments.strategy, Places()
    fingerprint = Fingerprint.read(places.fingerprint)
    tasks = read_tasks(places.tasks(model))
    began_s = time.perf_counter()
    held = hold(
        tasks,
        Skeleton.read(places.tasks(model)),
        read_database(places.shared(model, strategy)),
        fingerprint,
        arguments.contenders,
    )
    spent_s = time.perf_counter() - began_s
    print(table(held, {task.info.name: task.info.weight for task in tasks}).markdown())
    report = BenchmarkReport.read(places.benchmarked(model, strategy))
    whole_ms = report.variants["tuned"].median_ms
    gained_ms = sum(final.gain_s for final in held.values()) * 1e3
    result = {
        "model": model,
        "strategy": strategy,
        "tasks": len(held),
        "contenders": sum(len(final.keys) for final in held.values()),
        "others_chosen": sum(final.chosen > 0 for final in held.values()),
        "spent_s": round(spent_s, 1),
        "gained_ms": gained_ms,
        "latency_ms": whole_ms,
        "gained_pct": 100 * gained_ms / whole_ms,
        "device": fingerprint.device,
        "threads": fingerprint.threads,
        "versions": fingerprint.versions,
        "date": time.strftime("%Y-%m-%d"),
    }
    write_text(arguments.results / f"{model}_{strategy}.json", canonical_json(result))
    print(
        f"{model} ({strategy}): {result['others_chosen']} of {len(held)} tasks have a faster one, "
        f"{gained_ms:.3f} ms of {whole_ms:.3f} ({result['gained_pct']:.1f} %) gained by the runs "
        f"of a process that did not choose, in {spent_s:.0f} s"
    )


if __name__ == "__main__":
    main()

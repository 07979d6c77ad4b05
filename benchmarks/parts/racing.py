"""Does a race find the winner, and may building overlap with measuring? ``racing.py [--tasks 6]``.

Candidates of several tasks are measured three ways: raced (as tuning does), in full (every one as
long as stock's ``min_repeat_ms=100``), and raced while other candidates are built beside them. The
race is as good as full measuring if the candidate it would keep, after the final among its best,
is as fast as the one that full measuring finds fastest, by the full figures.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np

# Run as a script, Python looks beside this file only.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.helpers.common import alone
from benchmarks.stock.tuning_loop import model_tasks
from fewtune.machine.fingerprint import FingerprintOptions, detect_fingerprint
from fewtune.measure.measurer import Measurer, Specs, module_specs
from fewtune.runtime.target import target_from_json
from fewtune.runtime.tvm import tvm
from fewtune.schedule.space.prior import Prior
from fewtune.schedule.space.search_space import SearchSpace
from fewtune.timing.timer import Race
from fewtune.trial.outcome import Outcome
from fewtune.trial.worker_reply import Built, RequestFailedError, WorkerLostError
from fewtune.util.files import write_text
from fewtune.util.table import Table
from fewtune.workers.pool import WorkerPool

_FULL = Race(None, short_s=0.002, short_repeats=1, full_s=0.1, full_repeats=3)
_FINALISTS = 4


def measured_in_full(pool: WorkerPool, modules: list[tvm.IRModule], specs: Specs) -> list[Outcome]:
    """Every candidate for 300 ms, one after another, nothing beside it."""
    outcomes = []
    for result in pool.build([tvm.ir.save_json(module) for module in modules]):
        if not isinstance(result, Built):
            outcomes.append(Outcome(None, result.cause))
            continue
        try:
            measured = pool.handles[result.worker].call(
                "measure", result.number, specs, _FULL, timeout_s=60
            )
            outcomes.append(Outcome(measured.run_s))
        except (WorkerLostError, RequestFailedError) as fault:
            outcomes.append(Outcome(None, "runtime_error", str(fault)))
    pool.tidy()
    return outcomes


def main() -> None:
    """Measure, and print a line a task."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tasks", type=int, default=3, help="tasks of each of the two models")
    parser.add_argument("--candidates", type=int, default=32)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    with alone("racing"):
        run(arguments)


def run(arguments: argparse.Namespace) -> None:
    """Measure each task's candidates in both ways, and print the table."""
    fingerprint = detect_fingerprint(FingerprintOptions())
    target = target_from_json(fingerprint.target)
    random = np.random.default_rng(1)
    rows, records = [], []
    with WorkerPool(fingerprint.target, fingerprint.threads, fingerprint.threads) as pool:
        for model in ("squeezenet", "resnet50"):
            for task in model_tasks(model, fingerprint, arguments.tasks):
                space = SearchSpace(task.mod, target)
                prior, specs = Prior(space), module_specs(task.mod)
                made = [space.make(prior.draw(random), seed) for seed in range(1, 100)]
                modules = [m.schedule.mod for m in made if m.schedule][: arguments.candidates]
                everyone = [specs] * len(modules)
                nobody: list[float | None] = [None] * len(modules)
                full = [o.median_s for o in measured_in_full(pool, modules, specs)]
                began = time.perf_counter()
                raced = Measurer(pool).measure(modules, everyone, nobody)
                raced_s = time.perf_counter() - began
                began = time.perf_counter()
                beside = Measurer(pool, overlap=True).measure(modules, everyone, nobody)
                beside_s = time.perf_counter() - began
                order = np.argsort([outcome.median_s for outcome in raced])[:_FINALISTS]
                closing = Measurer(pool)
                finals = closing.duel(closing.build([modules[i] for i in order]), specs)
                kept = int(order[int(np.argmin([outcome.median_s for outcome in finals]))])
                both = [
                    (b.median_s / a.median_s)
                    for a, b in zip(raced, beside, strict=True)
                    if a.run_s and b.run_s
                ]
                record = {
                    "task": task.info.name,
                    "candidates": len(modules),
                    "loss_of_the_race": full[kept] / min(full) - 1,
                    "raced_s": raced_s,
                    "overlapped_s": beside_s,
                    "overlap_slows_by": statistics.median(both) - 1,
                    "overlap_p90": float(np.percentile(both, 90)) - 1,
                }
                records.append(record)
                rows.append(
                    [
                        record["task"],
                        f"{100 * record['loss_of_the_race']:.1f}",
                        f"{raced_s:.1f}",
                        f"{beside_s:.1f}",
                        f"{100 * record['overlap_slows_by']:.0f}",
                        f"{100 * record['overlap_p90']:.0f}",
                    ]
                )
                print("  ".join(rows[-1]), flush=True)
    headings = [
        "task",
        "race's winner behind the fastest, %",
        "build then measure, s",
        "overlapped, s",
        "overlap: figures slower by %, median",
        "p90",
    ]
    print()
    print(Table(headings, rows).text())
    print(
        f"Measured on {fingerprint.device}, {fingerprint.threads} threads, "
        f"{arguments.candidates} candidates a task; {time.strftime('%Y-%m-%d')}."
    )
    if arguments.output:
        write_text(arguments.output, json.dumps(records, indent=2) + "\n")


if __name__ == "__main__":
    main()

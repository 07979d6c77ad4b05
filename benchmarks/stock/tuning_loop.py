"""Our tuning loop against stock ``tune_tasks``: ``benchmarks/stock/tuning_loop.py [--quick]``.

Same tasks, same trials, same seeds, one machine, the two alternating. Stock runs with its defaults
(64 trials an iteration, ``LocalBuilder``, ``LocalRunner``), in a process of its own, on as many
threads as ours; its clock starts after its imports. Ours starts with the start of its workers. The
best schedules of both are measured again afterwards, interleaved in one process. A default
schedule that our loop measures on the way is no trial and takes no part in the comparison. The
last line of output is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

# Run as a script, Python looks beside this file only.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.helpers.common import alone
from benchmarks.stock.stock_process import StockProcess, job_tasks
from fewtune.artifacts import Fingerprint, TaskInfo
from fewtune.machine.fingerprint import FingerprintOptions, detect_fingerprint
from fewtune.measure.measurer import Measurer, module_specs
from fewtune.model.import_model import import_model, read_lowered
from fewtune.model.import_options import ImportOptions
from fewtune.options import TuneOptions
from fewtune.runtime.target import target_from_json
from fewtune.runtime.tvm import tvm
from fewtune.storage.database import replay
from fewtune.task.extract import Task, extract_tasks, task_module, workload_hash
from fewtune.tuning.tune import run_session
from fewtune.util.files import write_text
from fewtune.util.table import Table
from fewtune.workers.pool import WorkerPool

MODELS = Path(__file__).parents[2] / "models"
_PHASES = ("search_s", "build_s", "run_s", "model_update_s")


@dataclass
class Run:
    """One tuning of one task."""

    elapsed_s: float
    trials: int
    phases: dict[str, float]
    curve: list[tuple[float, float]]
    best: tvm.IRModule | None

    @property
    def trial_s(self) -> float:
        return self.elapsed_s / max(1, self.trials)

    def reached_s(self, bar_s: float) -> float:
        """When a candidate as fast as ``bar_s`` was known; infinite if never."""
        return min((at for at, time_s in self.curve if time_s <= bar_s), default=math.inf)


def tune_ours(task: Task, fingerprint: Fingerprint, options: TuneOptions) -> Run:
    """Tune one task with our loop."""
    name = task.info.name
    with tempfile.TemporaryDirectory() as scratch:
        state = run_session([task], [name], fingerprint, options, Path(scratch))
    known = state.tasks[name]
    points = [
        (at, trial.outcome.median_s) for at, trial in zip(known.times_s, known.trials, strict=True)
    ]
    default = known.default.key if known.default else None
    searched = [trial for trial in known.ranked() if trial.key != default]
    best = None
    if searched:
        best = replay(task.mod, searched[0], target_from_json(fingerprint.target)).mod
    phases = {phase: getattr(state.phases, phase) for phase in _PHASES}
    return Run(state.elapsed_s, len(known.trials), phases, points, best)


def tune_stock(
    process: StockProcess, task: Task, fingerprint: Fingerprint, trials: int, seed: int
) -> Run:
    """Tune one task with stock MetaSchedule."""
    reply = process.run(
        {
            "tasks": job_tasks([task]),
            "target": fingerprint.target,
            "trials": trials,
            "seed": seed,
        }
    )
    best = tvm.ir.load_json(reply["best_module"]) if reply["best_module"] else None
    curve = [(at, time_s) for at, time_s in reply["curve"] if time_s]
    phases = {phase: reply[phase] for phase in _PHASES}
    return Run(reply["elapsed_s"], reply["trials"], phases, curve, best)


def model_tasks(name: str, fingerprint: Fingerprint, count: int) -> list[Task]:
    """The tasks of a model that take most of its time, by operations, of distinct forms first."""
    target = target_from_json(fingerprint.target)
    with tempfile.TemporaryDirectory() as scratch:
        import_model(name, MODELS, target, fingerprint.threads, ImportOptions(), Path(scratch))
        tasks = extract_tasks(read_lowered(Path(scratch)), target)
    heavy = [task for task in tasks if task.info.flops > 1e6 and "conv2d" in task.info.name]
    heavy.sort(key=lambda task: (-task.info.flops * task.info.weight, task.info.name))
    return heavy[:count]


def small_task() -> Task:
    """One small matrix product, for a quick look."""
    from tvm import te

    left = te.placeholder((128, 128), name="left")
    right = te.placeholder((128, 128), name="right")
    axis = te.reduce_axis((0, 128), name="k")
    product = te.compute((128, 128), lambda i, j: te.sum(left[i, axis] * right[axis, j], axis))
    module = task_module(te.create_prim_func([left, right, product]))
    info = TaskInfo(
        name="matmul",
        workload=workload_hash(module),
        weight=1,
        anchor="product",
        operator="dense",
        shapes=[[128, 128]] * 3,
        dtype="float32",
        flops=2 * 128**3,
        bytes=3 * 4 * 128**2,
        share=1.0,
    )
    return Task(info, module)


def compare(stock: Run, ours: Run, task: Task, pool: WorkerPool) -> float:
    """Stock's best time over ours, both measured again in turns."""
    if stock.best is None or ours.best is None:
        return math.inf if ours.best is not None else 0.0
    measurer = Measurer(pool)
    both = measurer.build([stock.best, ours.best])
    outcomes = measurer.duel(both, module_specs(task.mod), rounds=25, round_s=0.01)
    return outcomes[0].median_s / outcomes[1].median_s


def geomean(values: list[float]) -> float:
    """Geometric mean of positive numbers."""
    return math.exp(statistics.fmean(math.log(value) for value in values))


def spread(values: list[float]) -> list[float]:
    """Least, median and most, rounded for a table."""
    return [round(v, 3) for v in (min(values), statistics.median(values), max(values))]


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one small task, in a minute")
    parser.add_argument("--trials", type=int, default=64, help="trials a task, for both")
    parser.add_argument("--seeds", type=int, default=3, help="seeds a task")
    parser.add_argument("--tasks", type=int, default=4, help="tasks of each of the two models")
    parser.add_argument("--strategy", default="evolutionary", help="our search strategy")
    parser.add_argument("--output", type=Path, help="also write the JSON object to this file")
    arguments = parser.parse_args()
    with alone("engine"):
        run(arguments)


def run(arguments: argparse.Namespace) -> None:
    """Tune each task by both, compare, and print the table."""
    fingerprint = detect_fingerprint(FingerprintOptions())
    if arguments.quick:
        tasks, trials, seeds = [small_task()], 8, 1
    else:
        tasks = [
            task
            for name in ("squeezenet", "resnet50")
            for task in model_tasks(name, fingerprint, arguments.tasks)
        ]
        trials, seeds = arguments.trials, arguments.seeds
    rows, pairs = [], []
    stock_process = StockProcess(fingerprint.threads)
    for seed in range(1, seeds + 1):
        for task in tasks:
            options = TuneOptions(
                trials_per_task=trials, strategy=arguments.strategy, seed=seed, least_gain=0.0
            )
            stock = tune_stock(stock_process, task, fingerprint, trials, seed)
            ours = tune_ours(task, fingerprint, options)
            with WorkerPool(fingerprint.target, fingerprint.threads, 1) as pool:
                quality = compare(stock, ours, task, pool)
            pairs.append((task, stock, ours, quality))
            stock_best_s = min((t for _, t in stock.curve), default=math.inf)
            bar_s = stock_best_s / 0.95
            reached = (stock.reached_s(bar_s), ours.reached_s(bar_s))
            rows.append(
                [
                    task.info.name,
                    str(seed),
                    f"{1 / stock.trial_s:.2f}",
                    f"{1 / ours.trial_s:.2f}",
                    f"{stock.trial_s / ours.trial_s:.2f}",
                    f"{stock_best_s * 1e3:.4f}",
                    f"{quality:.3f}",
                    f"{reached[0]:.1f}",
                    f"{reached[1]:.1f}",
                ]
            )
            print("  ".join(rows[-1]), flush=True)
    stock_process.close()
    print(report(rows, pairs, fingerprint, trials, seeds))
    summary = summarise(pairs, trials, seeds, len(tasks), fingerprint)
    print(json.dumps(summary))
    if arguments.output:
        write_text(arguments.output, json.dumps(summary, indent=2) + "\n")


def report(
    rows: list[list[str]],
    pairs: list[tuple[Task, Run, Run, float]],
    fingerprint: Fingerprint,
    trials: int,
    seeds: int,
) -> str:
    """The tables: a line a tuned task, and the seconds by phase."""
    header = [
        "task",
        "seed",
        "stock trials/s",
        "our trials/s",
        "ratio",
        "stock best ms",
        "quality",
        "stock to 95 %, s",
        "ours to 95 %, s",
    ]
    phases = [
        [name, *(f"{sum(run.phases[phase] for run in runs):.1f}" for phase in _PHASES)]
        for name, runs in (
            ("stock", [stock for _, stock, _, _ in pairs]),
            ("ours", [ours for _, _, ours, _ in pairs]),
        )
    ]
    versions = ", ".join(f"{name} {text}" for name, text in fingerprint.versions.items())
    return "\n".join(
        [
            "",
            Table(header, rows).text(),
            "",
            Table(["seconds in", "search", "build", "run", "model update"], phases).text(),
            "",
            f"Measured on {fingerprint.device}, {fingerprint.threads} threads, {trials} trials a "
            f"task, {seeds} seeds; {time.strftime('%Y-%m-%d')}; {versions}.",
            "",
        ]
    )


def summarise(
    pairs: list[tuple[Task, Run, Run, float]],
    trials: int,
    seeds: int,
    tasks: int,
    fingerprint: Fingerprint,
) -> dict:
    """The one JSON object."""
    speeds = [stock.trial_s / ours.trial_s for _, stock, ours, _ in pairs]
    qualities = [quality for *_, quality in pairs]
    times = []
    for _, stock, ours, _ in pairs:
        bar_s = min((t for _, t in stock.curve), default=math.inf) / 0.95
        # What was never reached counts as reached at the end: a lower bound for ours.
        times.append(stock.reached_s(bar_s) / min(ours.reached_s(bar_s), ours.elapsed_s))
    return {
        "speed_ratio": round(geomean(speeds), 3),
        "speed_ratio_spread": spread(speeds),
        "quality_geomean": round(geomean(qualities), 4),
        "quality_spread": spread(qualities),
        "better_tasks": sum(quality > 1 for quality in qualities),
        "never_reached_95": sum(
            math.isinf(ours.reached_s(min((t for _, t in stock.curve), default=math.inf) / 0.95))
            for _, stock, ours, _ in pairs
        ),
        "time_to_95_ratio": round(geomean(times), 3),
        "time_to_95_spread": spread(times),
        "tasks": tasks,
        "trials": trials,
        "seeds": seeds,
        "threads": fingerprint.threads,
        "device": fingerprint.device,
        "date": time.strftime("%Y-%m-%d"),
    }


if __name__ == "__main__":
    main()

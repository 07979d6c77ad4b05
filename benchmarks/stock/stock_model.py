"""Stock MetaSchedule on a whole model: ``benchmarks/stock/stock_model.py MODEL [--trials 32]``.

To be run in a checkout where ``fewtune run MODEL --all`` was done. Stock ``tune_tasks`` gets the
model as it is imported here, but for Winograd's transforms, which are no part of TVM's import; the
same target and threads, and its own defaults for all else (``LocalBuilder``, ``LocalRunner``,
gradient scheduler), in a process of its own. Its clock starts
after its imports. Log and database stay under ``.fewtune/stock/MODEL``. Kernels for which stock
found nothing are built unscheduled, as stock does. Then stock's, the selective and the full
library, untuned TVM and onnxruntime are measured in turns in one process, and
``results/stock/MODEL.json`` is written.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

# Run as a script, Python looks beside this file only.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.helpers.common import one_line_errors
from fewtune.artifacts import CompileReport, Conditions, Fingerprint, ImportReport, Metrics
from fewtune.benchmark import interleave
from fewtune.benchmark.variants import Variants
from fewtune.compile.compile import LIBRARY, verify
from fewtune.compile.schedules import KernelSchedules, Level
from fewtune.errors import MachineError, VerificationError
from fewtune.machine.device_lock import device_lock
from fewtune.machine.fingerprint import require_compiler
from fewtune.measure.device import device_of
from fewtune.model.import_model import REFERENCE
from fewtune.model.lower import lower
from fewtune.onnx_graph import simplify as prepare
from fewtune.onnx_graph.external_data import load
from fewtune.options import BenchmarkOptions
from fewtune.runtime.executable import CompiledModel, build_executable
from fewtune.runtime.target import target_from_json
from fewtune.runtime.tvm import tvm
from fewtune.stages.commit import commit
from fewtune.stages.paths import Places
from fewtune.storage.database import read_database
from fewtune.task import weight_layout
from fewtune.task.extract import Task, extract_tasks
from fewtune.util.files import canonical_json, write_text

_TELL_EVERY_S = 10.0


# Of the trials, in per cent. Idle, builds take seconds; on a busy machine the 15 s of imports in
# each of stock's build workers pass its 30 s, and what then is measured is not stock.
_MOST_BUILD_TIMEOUTS_PCT = 10


def tune_with_stock(
    tasks: list[Task], fingerprint: Fingerprint, trials: int, seed: int, work: Path
) -> dict[str, Any]:
    """Tune all tasks with stock MetaSchedule into ``work``, which is emptied first.

    Returns
    -------
    tuned : dict
        ``elapsed_s``, ``trials`` and how many ``failed``, ``build_timeouts`` among them,
        ``trials_by_task``, ``trials_per_task``, ``tasks``.
    """
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    file, log, result = work / "job.json", work / "stock.log", work / "result.json"
    named = [(task.info.name, tvm.ir.save_json(task.mod), task.info.weight) for task in tasks]
    job = {
        "tasks": [dict(zip(("name", "module", "weight"), each, strict=True)) for each in named],
        "target": fingerprint.target,
        "trials": trials,
        "seed": seed,
        "work_dir": str(work.resolve()),
        "result": str(result),
    }
    write_text(file, canonical_json(job))
    script = Path(__file__).with_name("stock.py")
    began_s = time.perf_counter()
    with (
        log.open("w") as said,
        subprocess.Popen(
            [sys.executable, str(script), str(file)],
            stdout=said,
            stderr=said,
            # Its runner's workers inherit it: TVM's pool in them.
            env={**os.environ, "TVM_NUM_THREADS": str(fingerprint.threads)},
        ) as process,
    ):
        while process.poll() is None:
            time.sleep(_TELL_EVERY_S)
            taken_s = time.perf_counter() - began_s
            print(f"stock: {sent(log)}/{trials * len(tasks)} trials, {taken_s:.0f} s", flush=True)
    if process.returncode:
        raise MachineError(f"stock tuning failed: {log.read_text().strip()[-500:]}")
    tuned: dict[str, Any] = json.loads(result.read_text())
    return tuned


def sent(log: Path) -> int:
    """Candidates sent to stock's runner, by its log.

    Neither its callbacks nor its database tell in time: they hear of a task's trials when the
    scheduler picks that task again.
    """
    return sum(map(int, re.findall(r"Sending (\d+) valid sample", log.read_text())))


def check_builds(tuned: dict[str, Any], work: Path) -> None:
    """Refuse a run whose builds did not get the time they need.

    Raises
    ------
    MachineError
        If more than a tenth of stock's trials ran into its builder's timeout.
    """
    timeouts, trials = tuned["build_timeouts"], tuned["trials"]
    if timeouts * 100 > trials * _MOST_BUILD_TIMEOUTS_PCT:
        raise MachineError(
            f"{timeouts} of stock's {trials} trials ran into its builder's timeout of 30 s: the "
            f"machine was busy; run again when nothing else runs here (log in {work})"
        )


def build_stock(
    lowered: tvm.IRModule, tasks: list[Task], database: Path, target: tvm.target.Target, to: Path
) -> list[str]:
    """Apply a stock database, build and export the library ``to``.

    Returns
    -------
    rest : list of str
        Kernels that the database has no schedule for. They are built as they are.
    """
    schedules = KernelSchedules(lowered, tasks, read_database(database), target)
    served = {name: level for name, level in schedules.levels.items() if level == Level.LOG}
    folded = weight_layout.fold(schedules.module(served))
    build_executable(folded, target).export_library(str(to))
    return sorted(set(schedules.levels) - set(served))


def result_of(
    model: str,
    tuned: dict[str, Any],
    rest: list[str],
    selective: Metrics,
    samples_s: dict[str, list[float]],
    max_relative_error: float,
    conditions: Conditions,
) -> dict[str, Any]:
    """The figures of ``results/stock/MODEL.json``.

    Parameters
    ----------
    model : str
    tuned : dict
        From `tune_with_stock`.
    rest : list of str
        Kernels without a schedule.
    selective : Metrics
        Of the selective run.
    samples_s : dict of list of float
        Seconds by variant: stock, selective, full, untuned, onnxruntime.
    max_relative_error : float
        Of stock's, the selective and the full library against onnxruntime.
    conditions : Conditions
    """
    latencies = {
        f"{name}_latency_ms": interleave.latency_stats(taken).median_ms
        for name, taken in samples_s.items()
    }
    notes = []
    if tuned["failed"]:
        notes.append(
            f"{tuned['failed']} of stock's trials failed ({tuned['build_timeouts']} builds ran "
            "into its timeout)"
        )
    if rest:
        notes.append(
            f"stock found no schedule for {len(rest)} kernels, which run unscheduled: "
            + ", ".join(rest)
        )
    return {
        "model": model,
        "stock_tuning_s": round(tuned["elapsed_s"], 3),
        "stock_trials": tuned["trials"],
        "stock_trials_per_task": tuned["trials_per_task"],
        "stock_tasks": tuned["tasks"],
        **latencies,
        **interleave.achieved_pct(samples_s["stock"], samples_s["selective"]),
        "used_time_pct": 100 * selective.tuning_s / tuned["elapsed_s"],
        "selective_tuning_s": selective.tuning_s,
        "max_relative_error": max_relative_error,
        "conditions": conditions.model_dump(mode="json"),
        "note": "; ".join(notes),
    }


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Tune, build, verify, measure."""
    require_compiler()
    places, model = Places(), arguments.model
    fingerprint = Fingerprint.read(places.fingerprint)
    target = target_from_json(fingerprint.target)
    # Read before anything else is done, so that what is missing is said now.
    selective = Metrics.read(places.benchmarked(model, "selective"))
    libraries = {
        name: places.compiled(model, name)
        / CompileReport.read(places.compiled(model, name)).library
        for name in ("selective", "full")
    }
    imported = places.imported(model)
    lowered = plain_lowered(imported, target)
    tasks = extract_tasks(lowered)
    work = places.scratch / "stock" / model
    options = BenchmarkOptions(rounds=arguments.rounds)
    with device_lock(device_of(fingerprint).lock, f"stock {model}"):
        print(f"stock: {len(tasks)} tasks, log in {work}", flush=True)
        tuned = tune_with_stock(tasks, fingerprint, arguments.trials, arguments.seed, work)
        print(f"stock: {tuned['trials']} trials in {tuned['elapsed_s']:.0f} s", flush=True)
        check_builds(tuned, work)
        library = work / LIBRARY
        rest = build_stock(lowered, tasks, work, target, library)
        found = verify(CompiledModel(library, target), imported)
        if not found.allowances <= 1:
            raise VerificationError(
                f"{model}: of stock's library, {found.text}; nothing was measured"
            )
        libraries = {"stock": library, **libraries}
        variants = Variants(imported, libraries, fingerprint, options)
        error = max(variants.difference(name).max_relative_error for name in libraries)
        samples_s = variants.measured(options.rounds)
    conditions = Conditions(
        fingerprint=fingerprint,
        trials_per_task=arguments.trials,
        commit=commit(),
        **dict(variants.options),
    )
    return result_of(model, tuned, rest, selective, samples_s, error, conditions)


def plain_lowered(imported: Path, target: tvm.target.Target) -> tvm.IRModule:
    """The imported model, every convolution as its plain sum of the filters it has.

    Parameters
    ----------
    imported : Path
        What the import stage wrote.
    target : Target
    """
    model = prepare.simplify(load(imported / REFERENCE))
    return lower(model, target, ImportReport.read(imported).layout)


def main() -> None:
    """Run the benchmark and write its JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", help="a model that `fewtune run MODEL --all` was done with")
    parser.add_argument("--trials", type=int, default=32, help="trials a task")
    parser.add_argument("--rounds", type=int, default=30, help="rounds of all variants in turn")
    parser.add_argument("--seed", type=int, default=1, help="of stock's search, from 1 on")
    parser.add_argument("--output", type=Path, default=Path("results/stock"))
    arguments = parser.parse_args()
    with one_line_errors("stock_model"):
        result = run(arguments)
    path = arguments.output / f"{arguments.model}.json"
    write_text(path, canonical_json(result))
    print(
        f"{arguments.model}: stock {result['stock_latency_ms']:.3f} ms after "
        f"{result['stock_tuning_s']:.0f} s; selective {result['achieved_perf_pct']:.1f} % of the "
        f"performance in {result['used_time_pct']:.1f} % of the time; {path}"
    )


if __name__ == "__main__":
    main()

"""Stock MetaSchedule with its defaults, in a process of its own.

Each line of standard input names a job file; a line "done" answers when its result is written.

TVM is imported as any user of it would, not through `fewtune.runtime.tvm`. The clock starts after
the imports, also of the tensor intrinsics, which ``TuneContext`` imports (15 s). A job names its
tasks (name, module, weight), the target, trials a task, the seed and the result file. With a
``work_dir`` it is a model: log and database stay there, and only counts are the result; without,
it is one task, whose every candidate is told.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import tvm
import tvm.s_tir.tensor_intrin
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

_PR_SET_PDEATHSIG = 1
# The default of ``tune_tasks``.
_TRIALS_AN_ITERATION = 64


@derived_object
class _Trajectory(ms.measure_callback.PyMeasureCallback):
    """Notes when each candidate's time was known."""

    def __init__(self) -> None:
        super().__init__()
        self.began_s = time.perf_counter()
        self.trials: list[dict] = []

    def apply(self, task_scheduler, task_id, candidates, built, ran) -> None:  # noqa: ANN001
        elapsed_s = time.perf_counter() - self.began_s
        for candidate, result in zip(candidates, ran, strict=True):
            times_s = [float(value) for value in result.run_secs or ()]
            trace = str(candidate.sch.trace.as_json()) if times_s else ""
            self.trials.append(
                {
                    "elapsed_s": elapsed_s,
                    "median_s": statistics.median(times_s) if times_s else None,
                    "trace": tvm.ir.save_json(candidate.sch.mod) if trace else None,
                }
            )


@derived_object
class _Counts(ms.measure_callback.PyMeasureCallback):
    """Counts the trials of a model by task."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.names = names
        self.trials: Counter[str] = Counter()
        self.failed = self.build_timeouts = 0

    def apply(self, task_scheduler, task_id, candidates, built, ran) -> None:  # noqa: ANN001
        name = self.names[int(task_id)]
        self.trials[name] += len(candidates)
        self.failed += sum(not result.run_secs for result in ran)
        # Its build workers import for 15 s on an idle machine, of the 30 s that a build may take.
        self.build_timeouts += sum("Timeout" in str(each.error_msg or "") for each in built)


def tune(job: dict[str, Any], work_dir: Path, callback: object) -> float:
    """Tune the job's tasks with the defaults of ``tune_tasks``; return wall-clock seconds."""
    target = tvm.target.Target(json.loads(job["target"]))
    modules = [tvm.ir.load_json(task["module"]) for task in job["tasks"]]
    names = [task["name"] for task in job["tasks"]]
    loggers: list[logging.Logger | None] = [None] * len(names)
    if "work_dir" in job:
        # As ``tune_relax`` does it: a file for each task, another for the scheduler.
        loggers = list(ms.logging.get_loggers_from_work_dir(str(work_dir), names))
    began_s = time.perf_counter()
    contexts = [
        ms.TuneContext(
            mod=module,
            target=target,
            space_generator="post-order-apply",
            search_strategy="evolutionary",
            task_name=name,
            rand_state=job["seed"] + place,
            logger=logger,
        )
        for place, (module, name, logger) in enumerate(zip(modules, names, loggers, strict=True))
    ]
    ms.tune.tune_tasks(
        tasks=contexts,
        task_weights=[float(task["weight"]) for task in job["tasks"]],
        work_dir=str(work_dir),
        max_trials_global=job["trials"] * len(contexts),
        max_trials_per_task=job["trials"],
        num_trials_per_iter=min(_TRIALS_AN_ITERATION, job["trials"]),
        measure_callbacks=[*ms.measure_callback.MeasureCallback.create("default"), callback],
    )
    return time.perf_counter() - began_s


def tune_one_task(job: dict[str, Any]) -> dict[str, Any]:
    """Seconds by phase, and when each candidate's time was known."""
    trajectory = _Trajectory()
    with tempfile.TemporaryDirectory() as scratch, ms.Profiler() as profiler:
        elapsed_s = tune(job, Path(scratch), trajectory)
    phases = {str(name): float(spent) for name, spent in profiler.get().items()}
    build_s = phases.get("SendToBuilder", 0.0)
    run_s = phases.get("SendToRunner", 0.0) + phases.get("JoinRunnerFutures", 0.0)
    model_s = phases.get("MeasureCallback/UpdateCostModel", 0.0)
    valid = [trial for trial in trajectory.trials if trial["median_s"]]
    best = min(valid, key=lambda trial: trial["median_s"], default=None)
    return {
        "elapsed_s": elapsed_s,
        "trials": len(trajectory.trials),
        "search_s": max(0.0, elapsed_s - build_s - run_s - model_s),
        "build_s": build_s,
        "run_s": run_s,
        "model_update_s": model_s,
        "curve": [[trial["elapsed_s"], trial["median_s"]] for trial in trajectory.trials],
        "best_module": best["trace"] if best else None,
    }


def tune_model(job: dict[str, Any]) -> dict[str, Any]:
    """Seconds, and trials by task; the database stays in the job's work folder."""
    names = [task["name"] for task in job["tasks"]]
    counts = _Counts(names)
    elapsed_s = tune(job, Path(job["work_dir"]), counts)
    return {
        "elapsed_s": elapsed_s,
        "trials": counts.trials.total(),
        "failed": counts.failed,
        "build_timeouts": counts.build_timeouts,
        "trials_by_task": dict(counts.trials),
        "tasks": len(names),
        "trials_per_task": job["trials"],
    }


def main(file: Path) -> None:
    """Do a job and write what came of it."""
    job = json.loads(file.read_text())
    result = tune_model(job) if "work_dir" in job else tune_one_task(job)
    Path(job["result"]).write_text(json.dumps(result))


if __name__ == "__main__":
    # Hours of tuning must not go on behind the back of a script that was killed.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w")
    # What TVM logs while it tunes is no answer.
    os.dup2(2, 1)
    for line in sys.stdin:
        main(Path(line.strip()))
        print("done", file=answers, flush=True)

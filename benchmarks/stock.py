"""Stock MetaSchedule on one task after another, in a process of its own.

Each line of standard input names a job file; a line "done" answers when its result is written.

TVM is imported as any user of it would, not through `fewtune.tvm_runtime`. The clock starts after
the imports, also of the tensor intrinsics, which ``TuneContext`` imports (15 s). The job names the
module, the target, the trials, the seed and the result file.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import tvm
import tvm.s_tir.tensor_intrin  # noqa: F401
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms


@derived_object
class _Trajectory(ms.measure_callback.PyMeasureCallback):
    """Notes when each candidate's time was known."""

    def __init__(self) -> None:
        super().__init__()
        self.began_s = time.perf_counter()
        self.trials: list[dict] = []

    def apply(self, task_scheduler, task_id, candidates, built, ran) -> None:  # noqa: ANN001, ARG002
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


def main(file: Path) -> None:
    """Tune the job's task with the defaults of ``tune_tasks`` and write what came of it."""
    job = json.loads(file.read_text())
    module = tvm.ir.load_json(job["module"])
    target = tvm.target.Target(json.loads(job["target"]))
    with tempfile.TemporaryDirectory() as scratch, ms.Profiler() as profiler:
        began_s = time.perf_counter()
        context = ms.TuneContext(
            mod=module,
            target=target,
            space_generator="post-order-apply",
            search_strategy="evolutionary",
            task_name="main",
            rand_state=job["seed"],
        )
        trajectory = _Trajectory()
        ms.tune.tune_tasks(
            tasks=[context],
            task_weights=[1.0],
            work_dir=scratch,
            max_trials_global=job["trials"],
            max_trials_per_task=job["trials"],
            measure_callbacks=[*ms.measure_callback.MeasureCallback.create("default"), trajectory],
        )
        elapsed_s = time.perf_counter() - began_s
    phases = {str(name): float(spent) for name, spent in profiler.get().items()}
    build_s = phases.get("SendToBuilder", 0.0)
    run_s = phases.get("SendToRunner", 0.0) + phases.get("JoinRunnerFutures", 0.0)
    model_s = phases.get("MeasureCallback/UpdateCostModel", 0.0)
    valid = [trial for trial in trajectory.trials if trial["median_s"]]
    best = min(valid, key=lambda trial: trial["median_s"], default=None)
    result = {
        "elapsed_s": elapsed_s,
        "trials": len(trajectory.trials),
        "search_s": max(0.0, elapsed_s - build_s - run_s - model_s),
        "build_s": build_s,
        "run_s": run_s,
        "model_update_s": model_s,
        "curve": [[trial["elapsed_s"], trial["median_s"]] for trial in trajectory.trials],
        "best_module": best["trace"] if best else None,
    }
    Path(job["result"]).write_text(json.dumps(result))


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    # What TVM logs while it tunes is no answer.
    os.dup2(2, 1)
    for line in sys.stdin:
        main(Path(line.strip()))
        print("done", file=answers, flush=True)

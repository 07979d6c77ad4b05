"""Stock MetaSchedule with its defaults, in a process of its own: ``stock.py JOB.json``.

TVM is imported as any user of it would, not through `fewtune.runtime.tvm`. The clock starts after
the imports, also of the tensor intrinsics, which ``TuneContext`` imports (15 s). A job names its
tasks (name, module, weight), the target, trials a task, the seed, the result file, and the folder
of log and database.
"""

from __future__ import annotations

import ctypes
import json
import signal
import sys
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


def tune(job: dict[str, Any]) -> dict[str, Any]:
    """Tune the job's tasks with the defaults of ``tune_tasks``: seconds, and trials by task."""
    target = tvm.target.Target(json.loads(job["target"]))
    modules = [tvm.ir.load_json(task["module"]) for task in job["tasks"]]
    names = [task["name"] for task in job["tasks"]]
    counts = _Counts(names)
    # As ``tune_relax`` does it: a file for each task, another for the scheduler.
    loggers = ms.logging.get_loggers_from_work_dir(job["work_dir"], names)
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
        work_dir=job["work_dir"],
        max_trials_global=job["trials"] * len(contexts),
        max_trials_per_task=job["trials"],
        num_trials_per_iter=min(_TRIALS_AN_ITERATION, job["trials"]),
        measure_callbacks=[*ms.measure_callback.MeasureCallback.create("default"), counts],
    )
    return {
        "elapsed_s": time.perf_counter() - began_s,
        "trials": counts.trials.total(),
        "failed": counts.failed,
        "build_timeouts": counts.build_timeouts,
        "trials_by_task": dict(counts.trials),
        "tasks": len(names),
        "trials_per_task": job["trials"],
    }


if __name__ == "__main__":
    # Hours of tuning must not go on behind the back of a script that was killed.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    given = json.loads(Path(sys.argv[1]).read_text())
    Path(given["result"]).write_text(json.dumps(tune(given)))

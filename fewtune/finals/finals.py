"""Finals in the model: which schedule of a task is the fastest inside the model.

The kernels before it decide where a kernel finds its data: in which core's cache, or in memory. A
measurement of the kernel alone leaves them elsewhere. Of schedules that are near each other alone,
the fastest in the model is often not the first, by up to a quarter of the kernel's time
(`benchmarks/parts/in_model.py`). So the best few of each task are linked together and take turns in
a model made of them (`fewtune.workers.model_runner`).
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import NamedTuple

from fewtune.artifacts import Skeleton
from fewtune.finals.finalists import RULES, FinalistRules, contested
from fewtune.measure.measurer import Measurer
from fewtune.runtime.tvm import tvm
from fewtune.schedule.space.transfer import usual_axes
from fewtune.task.extract import Task
from fewtune.timing.interference import ContenderSamples
from fewtune.trial.outcome import RequestFailedError, WorkerLostError
from fewtune.trial.trial import Trial
from fewtune.tuning.task_state import TaskState
from fewtune.workers.handle import WorkerHandle, call_all
from fewtune.workers.kernel_build import Candidate, Contender
from fewtune.workers.pool import WorkerPool
from fewtune.workers.worker import Worker

# Far longer than compiling, or running, all of them takes.
_LIMIT_S = 600.0
# Processes that run the model: a winner is the faster one in each of them.
_PROCESSES = 2


class Final(NamedTuple):
    """The result of one task's contenders.

    Attributes
    ----------
    keys : list of str
        The contenders' traces; alone, the first was the fastest.
    medians_s : list of list of float
        By process and contender: seconds of all its calls in one run of the model, and what the
        calls after it take longer because of it.
    chosen : int
        The place of the fastest.
    gain_s : float
        Seconds a run that the winner of one process is faster than the first contender in another
        process, averaged over both ways.
    """

    keys: list[str]
    medians_s: list[list[float]]
    chosen: int
    gain_s: float

    @staticmethod
    def of(keys: list[str], processes: list[list[list[float]]]) -> Final:
        """Choose by samples: a list per process, in it a list per contender.

        How fast a kernel reads its weights depends on where a process has them in memory. So a
        contender other than the first wins only if it is faster in every process.
        """
        medians_s = [[statistics.median(each) for each in samples] for samples in processes]
        totals_s = [sum(times_s) for times_s in zip(*medians_s, strict=True)]
        able = [
            place
            for place in range(len(keys))
            if all(times_s[place] <= times_s[0] for times_s in medians_s)
        ]
        chosen = min(able, key=totals_s.__getitem__)
        gains_s = [_gain(one_s, other_s) for one_s, other_s in permutations(medians_s, 2)]
        return Final(keys, medians_s, chosen, statistics.mean(gains_s) if gains_s else 0.0)

    def time_s(self, place: int) -> float:
        """Seconds of all calls of a contender in one run: the mean of the processes' medians."""
        return statistics.mean(times_s[place] for times_s in self.medians_s)


def _gain(choosing_s: list[float], judging_s: list[float]) -> float:
    """Seconds that the fastest of ``choosing_s`` gains on the first, by ``judging_s``."""
    return judging_s[0] - judging_s[min(range(len(choosing_s)), key=choosing_s.__getitem__)]


@dataclass
class Finals:
    """Holds the finals of a model's tasks.

    Parameters
    ----------
    skeleton : Skeleton
    tasks : list of Task
        All tasks of the model.
    target : Target
        A CPU.
    most : int
        Contenders of a heavy task (`fewtune.finals.finalists`).
    rules : FinalistRules
        Which schedules are contenders.
    """

    skeleton: Skeleton
    tasks: list[Task]
    target: tvm.target.Target
    most: int
    rules: FinalistRules = RULES

    def contenders(self, states: dict[str, TaskState]) -> dict[str, list[Trial]]:
        """Every searched task's contenders; empty if too little of the model is contested.

        A task that a bank holds has one contender.
        """
        ranked = {
            name: state.ranked()[: 1 if state.taken else None]
            for name, state in states.items()
            if state.ranked() and not state.crashed
        }
        times_s = {name: states[name].progress.share_s for name in ranked}
        usual = usual_axes(task.info for task in self.tasks)
        return contested(ranked, times_s, self.most, usual, self.rules)

    def hold(self, contenders: dict[str, list[Trial]], measurer: Measurer) -> dict[str, Final]:
        """Measure the contenders in the model.

        Parameters
        ----------
        contenders : dict of list of Trial
            As `contenders` returns them.
        measurer : Measurer
            Its workers compile and run them; their time is added to its phases.

        Returns
        -------
        finals : dict of Final
            By task, for tasks with more than one contender.

        Raises
        ------
        WorkerLostError, RequestFailedError
            If the model cannot be compiled, or run.
        """
        # One process may be lucky with its memory; of many, any could veto a faster contender.
        processes = self._run(contenders, measurer, measurer.pool.handles[:_PROCESSES])
        return {
            task.info.name: Final.of(
                [trial.key for trial in contenders[task.info.name]],
                [samples[task.info.workload] for samples in processes],
            )
            for task in self.tasks
            if len(contenders.get(task.info.name, [])) > 1 and task.info.workload in processes[0]
        }

    def _run(
        self,
        contenders: dict[str, list[Trial]],
        measurer: Measurer,
        handles: Sequence[WorkerHandle],
    ) -> list[ContenderSamples]:
        """What each worker measured; they run one after the other."""
        pool, phases = measurer.pool, measurer.phases
        called = {site.workload for site in self.skeleton.sites}
        candidates: dict[str, list[Candidate]] = {}
        for task in self.tasks:
            if task.info.workload in called:
                module = tvm.ir.save_json(task.mod)
                keys: list[str | None] = [t.key for t in contenders.get(task.info.name, [])]
                candidates[task.info.workload] = [Candidate(module, key) for key in keys or [None]]
        try:
            with tempfile.TemporaryDirectory(prefix="fewtune-") as scratch:
                with phases.timed("build_s"):
                    linked = _ready(pool, candidates, Path(scratch))
                    skeleton = self.skeleton.model_dump_json()
                    given = [(skeleton, linked)] * len(handles)
                    call_all(handles, _LIMIT_S, Worker.load_model, given)
                with phases.timed("run_s"):
                    processes = [h.call(_LIMIT_S, Worker.run_model) for h in handles]
        except (WorkerLostError, RequestFailedError):
            # One may still be running, and its late answer would be taken for the next request's.
            for handle in pool.handles:
                handle.kill()
            raise
        pool.tidy()
        return processes


def _ready(
    pool: WorkerPool,
    candidates: dict[str, list[Candidate]],
    directory: Path,
) -> dict[str, list[Contender]]:
    """Get all contenders into libraries, on all workers in parallel.

    A kernel that a worker still has is exported as a library of its own. The others are compiled
    again, into one library per worker.
    """
    exported: list[dict[int, str]] = [{} for _ in pool.handles]
    rest: dict[str, Candidate] = {}
    for workload, each in candidates.items():
        for place, candidate in enumerate(each):
            name = f"kernel_{workload}_{place}"
            kept = pool.kept_build(workload, candidate.key) if candidate.key is not None else None
            if kept is None:
                rest[name] = candidate
            else:
                exported[kept.worker][kept.number] = str(directory / f"{name}.so")
    found: dict[str, Contender] = {}
    for shapes in call_all(pool.handles, _LIMIT_S, Worker.export, [(each,) for each in exported]):
        found.update((Path(path).stem, Contender(path, "main", s)) for path, s in shapes.items())
    # Dealt out in turns: contenders of one task take about equally long to compile.
    names = list(rest)
    parts = [
        {name: rest[name] for name in names[start :: len(pool.handles)]}
        for start in range(len(pool.handles))
    ]
    paths = [str(directory / f"{place}.so") for place in range(len(parts))]
    given = list(zip(paths, parts, strict=True))
    for made in call_all(pool.handles, _LIMIT_S, Worker.link, given):
        found.update(made)
    return {
        workload: [found[f"kernel_{workload}_{place}"] for place in range(len(each))]
        for workload, each in candidates.items()
    }

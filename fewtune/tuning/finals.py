"""Finals in the model: who is the fastest where the model calls it.

Alone, a kernel finds its data as the measurement leaves them; in the model as the kernels before it
do: in which core's cache, or in none. Of schedules that are near each other alone, another one than
the first is often the fastest in the model (`benchmarks/in_model.py`), by up to a quarter of the
kernel's time. The likeliest few of every task are therefore compiled once more, together, and take
turns in a model made of them (`fewtune.tuning.model_run`).
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

from fewtune.artifacts import Skeleton, TaskInfo
from fewtune.model.winograd import PRODUCTS, TILES
from fewtune.task.extract import Task
from fewtune.tuning.handle import RequestFailedError, WorkerLostError
from fewtune.tuning.log import Trial
from fewtune.tuning.measure import Measurer
from fewtune.tuning.model_run import Candidate, Contender
from fewtune.tuning.neighbours import parted
from fewtune.tuning.pool import WorkerPool
from fewtune.tuning.state import TaskState
from fewtune.tvm_runtime import tvm

# Alone, a contender takes no longer than this many times the fastest; one that parts another axis
# among the threads may, since its neighbours can gain more than that.
_NEAR, _NEAR_OTHER = 1.2, 1.5
# What is within so many times the fastest alone is as fast.
_AS_FAST = 1.03
# Parts of the model's time: from the first on, a task sends as many contenders as it may, from
# the second on half of them; from the third on, what its neighbours may gain is worth one that
# parts another axis. The rest of the tasks is not worth the compilation.
_HEAVY, _LIGHT, _SLIGHT = 0.02, 0.01, 0.002
# A call that takes so long is hardly decided by what it finds in a core's cache, which memory fills
# in a tenth of that: duels, which compile nothing, tell its fastest as well. Of VGG 19, all of
# whose heavy kernels take longer, finals took 8.7 of 31 s of sharing and gained nothing (an EPYC).
LONG_S = 1e-3
# Where less of the model's time is contested, nothing is compiled for it.
_LEAST_CONTESTED = 0.25
# Far beyond what compiling, or running, all of them takes.
_LIMIT_S = 600.0


class Final(NamedTuple):
    """How the contenders of one task fared.

    Attributes
    ----------
    keys : list of str
        The contenders' traces; alone, the first was the fastest.
    medians_s : list of list of float
        Process by process, the seconds that all calls of one run of the model took with each, and
        that calls after it took for its sake.
    chosen : int
        The place of the fastest.
    gain_s : float
        Seconds a run that what one process's runs choose is faster than the first in another's.
    """

    keys: list[str]
    medians_s: list[list[float]]
    chosen: int
    gain_s: float

    @staticmethod
    def of(keys: list[str], processes: list[list[list[float]]]) -> Final:
        """Judge by samples: by process, a list of them each contender.

        How fast a kernel reads its weights depends on the memory that a process happens to have
        for them: whoever is to be taken instead of the first must be faster in every process.
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
    """What the fastest by some figures is faster than the first contender by others."""
    return judging_s[0] - judging_s[min(range(len(choosing_s)), key=choosing_s.__getitem__)]


def contenders_of(ranked: list[Trial], part: float, most: int) -> list[Trial]:
    """Those of a task's schedules that may be its fastest alone.

    Parameters
    ----------
    ranked : list of Trial
        The fastest alone first.
    part : float
        Of the model's time that the task takes.
    most : int
        Contenders of a task that takes much of it.
    """
    if part < _LIGHT:
        return ranked[:1]
    count = most if part >= _HEAVY else max(1, most // 2)
    return _near(ranked, _NEAR)[:count]


def contenders_in_model(
    ranked: list[Trial], part: float, most: int, usual: int | None = None
) -> list[Trial]:
    """Those that may be the fastest in the model, where neighbours count (`neighbours.charged`).

    They are the fastest alone, but that one of them parts another axis among the threads than the
    first does, if any does that is near: what a task takes itself may be little beside what it
    makes others take. Not all of that is seen in finals, whose model copies what the compiled one
    computes in place: of those that are as fast alone, the first is one that parts the usual axis.

    Parameters
    ----------
    ranked, part, most
        As of `contenders_of`.
    usual : int, optional
        The axis that kernels which are not searched part.

    Returns
    -------
    contenders : list of Trial
        Whoever is to be taken instead of the first has to be faster in every process.
    """
    found = contenders_of(ranked, part, most)
    if part < _SLIGHT or most < 2:  # noqa: PLR2004
        return found
    first = parted(ranked[0].key)
    if all(parted(trial.key) == first for trial in found):
        other = next((t for t in _near(ranked, _NEAR_OTHER) if parted(t.key) != first), None)
        if other is None:
            return found
        room = max(2, most if part >= _HEAVY else most // 2)
        found = [*found[: room - 1], other]
    alike = next((t for t in _near(found, _AS_FAST) if parted(t.key) == usual), found[0])
    return [alike, *(trial for trial in found if trial is not alike)]


def _near(ranked: list[Trial], ratio: float) -> list[Trial]:
    """Those that take no longer alone than so many times the fastest."""
    return [t for t in ranked if t.outcome.median_s <= ratio * ranked[0].outcome.median_s]


def usual_axis(task: TaskInfo) -> int | None:
    """The axis of a task's result that kernels which are not searched part among the threads.

    It is the outermost, but that Winograd's transforms part the tiles of their products.
    """
    if task.anchor.startswith(PRODUCTS):
        return TILES
    return next((axis for axis, extent in enumerate(task.shapes[-1]) if extent > 1), None)


def contested(
    ranked: dict[str, list[Trial]],
    times_s: dict[str, float],
    most: int,
    usual: dict[str, int | None] | None = None,
) -> dict[str, list[Trial]]:
    """Every task's contenders; none at all where too little of the model is contested.

    Parameters
    ----------
    ranked : dict of list of Trial
        By task, the fastest alone first.
    times_s : dict of float
        What each task takes of the model's time.
    most : int
        Contenders of a task that takes much of it.
    usual : dict of int, optional
        Each task's `usual_axis`.
    """
    usual = usual or {}
    whole_s = sum(times_s.values())
    found = {
        name: contenders_in_model(trials, times_s[name] / whole_s, most, usual.get(name))
        if trials[0].outcome.median_s < LONG_S
        else trials[:1]
        for name, trials in ranked.items()
    }
    contested_s = sum(times_s[name] for name, trials in found.items() if len(trials) > 1)
    return found if whole_s and contested_s >= _LEAST_CONTESTED * whole_s else {}


@dataclass(frozen=True)
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
        Contenders of a task that takes much of the model's time.
    """

    skeleton: Skeleton
    tasks: list[Task]
    target: tvm.target.Target
    most: int

    def contenders(self, states: dict[str, TaskState]) -> dict[str, list[Trial]]:
        """Every searched task's contenders; none at all where too little is contested.

        One alone where calls are long, or a bank has the task itself.
        """
        ranked = {
            name: state.ranked()[: 1 if state.taken else None]
            for name, state in states.items()
            if state.ranked() and not state.crashed
        }
        times_s = {
            name: states[name].progress.weight * states[name].progress.current_s for name in ranked
        }
        usual = {task.info.name: usual_axis(task.info) for task in self.tasks}
        return contested(ranked, times_s, self.most, usual)

    def hold(self, contenders: dict[str, list[Trial]], measurer: Measurer) -> dict[str, Final]:
        """Measure the contenders in the model.

        Parameters
        ----------
        contenders : dict of list of Trial
            As `contenders` gave them.
        measurer : Measurer
            Its workers compile and run them; its phases are added to.

        Returns
        -------
        finals : dict of Final
            By task, where there was more than one contender.

        Raises
        ------
        WorkerLostError, RequestFailedError
            If it cannot be compiled, or run.
        """
        pool, phases = measurer.pool, measurer.phases
        called = {site.workload for site in self.skeleton.sites}
        candidates: dict[str, list[Candidate]] = {}
        for task in self.tasks:
            if task.info.workload in called:
                module = tvm.ir.save_json(task.mod)
                keys = [trial.key for trial in contenders.get(task.info.name, [])]
                candidates[task.info.workload] = [Candidate(module, key) for key in keys or [None]]
        try:
            with tempfile.TemporaryDirectory(prefix="fewtune-") as scratch:
                with phases.timed("build_s"):
                    linked = _ready(pool, candidates, Path(scratch))
                    skeleton = self.skeleton.model_dump_json()
                    _together(pool, [("load_model", skeleton, linked) for _ in pool.handles])
                with phases.timed("run_s"):
                    processes = [h.call("run_model", timeout_s=_LIMIT_S) for h in pool.handles]
        except (WorkerLostError, RequestFailedError):
            # One may still be at it, and would give that answer to the next request.
            for handle in pool.handles:
                handle.kill()
            raise
        pool.tidy()
        return {
            task.info.name: Final.of(
                [trial.key for trial in contenders[task.info.name]],
                [samples[task.info.workload] for samples in processes],
            )
            for task in self.tasks
            if len(contenders.get(task.info.name, [])) > 1 and task.info.workload in called
        }


def _ready(
    pool: WorkerPool, candidates: dict[str, list[Candidate]], directory: Path
) -> dict[str, list[Contender]]:
    """Get all contenders into libraries, on all workers at once.

    What a worker still has of its measurement is a library of its own by now; what none has is
    compiled once more, into one library a worker.
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
    for shapes in _together(pool, [("export", paths) for paths in exported]):
        found.update((Path(path).stem, Contender(path, "main", s)) for path, s in shapes.items())
    # One to each in turn: contenders of one task take about as long to compile.
    names = list(rest)
    parts = [
        {name: rest[name] for name in names[start :: len(pool.handles)]}
        for start in range(len(pool.handles))
    ]
    paths = [str(directory / f"{place}.so") for place in range(len(parts))]
    requests = [("link", path, part) for path, part in zip(paths, parts, strict=True)]
    for path, shapes in zip(paths, _together(pool, requests), strict=True):
        found.update((name, Contender(path, name, each)) for name, each in shapes.items())
    return {
        workload: [found[f"kernel_{workload}_{place}"] for place in range(len(each))]
        for workload, each in candidates.items()
    }


def _together(pool: WorkerPool, requests: Sequence[tuple[Any, ...]]) -> list[Any]:
    """The answers of all workers, each to its own request."""
    for handle, request in zip(pool.handles, requests, strict=True):
        handle.send(*request)
    return [handle.receive(_LIMIT_S, "build_timeout") for handle in pool.handles]

"""Measure contenders in turns: in the model where that is possible, else alone.

The kernels before it decide where a kernel finds its data: in which core's cache, or in memory. A
measurement of the kernel alone leaves them elsewhere. Of schedules that are near each other alone,
the fastest in the model is often not the first, by up to a quarter of the kernel's time. One run of
the model measures a contender of every task.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from queue import SimpleQueue
from subprocess import CalledProcessError
from typing import Any, NamedTuple

from fewtune.artifacts import Skeleton
from fewtune.measure.measurer import Measurer, module_specs
from fewtune.runtime.executable import with_own_threads
from fewtune.runtime.kernel_store import renamed
from fewtune.runtime.tvm import tvm
from fewtune.schedule_check.check import ScheduleCheck
from fewtune.search import Proposal
from fewtune.storage.database import replay
from fewtune.task.extract import read_tasks
from fewtune.trial.outcome import WRONG_OUTPUT, Outcome, RequestFailedError, WorkerLostError
from fewtune.trial.trial import Trial
from fewtune.tuning.final import Final
from fewtune.tuning.state import TaskState
from fewtune.workers.model_runner import Contender
from fewtune.workers.pool import WorkerHandle
from fewtune.workers.worker import Candidate, Made, Worker

# Far longer than compiling, or running, all of them takes.
_LIMIT_S = 600.0
# A kernel takes a second to compile. LLVM took ten minutes over one: its loops were unrolled too
# far, so that it would have been slow as well.
_MAKE_LIMIT_S = 30.0
# Processes that run the model: a winner is the faster one in each of them.
_PROCESSES = 2
# The key of a kernel's default schedule where it has no trace.
DEFAULT = ""


class Judged(NamedTuple):
    """What a round came to.

    Attributes
    ----------
    finals : dict of Final
        By task, of the contenders that worked.
    outcomes : dict of Outcome
        By task and key.
    rest_s : float
        Seconds of a run of the model in kernels of no contender.
    """

    finals: dict[str, Final]
    outcomes: dict[tuple[str, str], Outcome]
    rest_s: float = 0.0


class Entry(NamedTuple):
    """A task's contenders by their traces; the first is what the library has.

    Attributes
    ----------
    state : TaskState
    keys : list of str
    asked : list of Proposal
        What its search proposed, known ones and repeats included.
    donors : dict of str
        Those of the contenders that were never measured: whose schedule each is, or None.
    """

    state: TaskState
    keys: list[str]
    asked: list[Proposal]
    donors: dict[str, str | None]

    @property
    def name(self) -> str:
        return self.state.name

    def module(self, key: str, target: tvm.target.Target) -> tvm.IRModule:
        """The scheduled module of a contender."""
        made = (each.schedule for each in self.asked if each.key == key)
        return (next(made, None) or replay(self.state.task.mod, Trial(key, None, None), target)).mod


def alone(entries: list[Entry], measurer: Measurer, target: tvm.target.Target) -> Judged:
    """Measure each task's contenders alone, on any device; those of a task are built together."""
    every = [(each, key) for each in entries for key in each.keys if key != DEFAULT]
    measured = measurer.measure(
        [entry.module(key, target) for entry, key in every],
        [module_specs(entry.state.task.mod) for entry, _ in every],
        # What a task has is first, and the bar: an earlier time may be of another pace, and who
        # is slower than the bar is not checked.
        [None] * len(every),
        races=[entry.name for entry, _ in every],
        checks=[
            entry.state.check._replace(is_default=key == entry.state.default_key)
            for entry, key in every
        ],
    )
    outcomes = {(e.name, key): outcome for (e, key), outcome in zip(every, measured, strict=True)}
    samples: dict[str, dict[str, list[float]]] = {}
    for (entry, key), outcome in zip(every, measured, strict=True):
        if outcome.run_s:
            of_calls = [entry.state.weight * run_s for run_s in outcome.run_s]
            samples.setdefault(entry.name, {})[key] = of_calls
    finals = {name: Final.of([*each], [[*each.values()]]) for name, each in samples.items()}
    return Judged(finals, outcomes)


class InModel:
    """Measures contenders where the model calls them; its processes are those of a measurer.

    Parameters
    ----------
    folder : Path
        Of the model's tasks, with its skeleton.
    measurer : Measurer
    threads : int
        Of each kernel.
    """

    def __init__(self, folder: Path, measurer: Measurer, threads: int) -> None:
        self._link: Callable[..., None] = with_own_threads(threads)
        self._skeleton, self._measurer = Skeleton.read(folder), measurer
        called = {site.workload for site in self._skeleton.sites}
        self._tasks = [task for task in read_tasks(folder) if task.info.workload in called]
        self._modules = {each.info.name: tvm.ir.save_json(each.mod) for each in self._tasks}
        self._made: dict[tuple[str, str], Future[Made | Outcome]] = {}
        self._free: SimpleQueue[WorkerHandle] = SimpleQueue()
        for handle in measurer.pool.handles:
            self._free.put(handle)
        self._threads = ThreadPoolExecutor(len(measurer.pool.handles))

    def offer(self, state: TaskState, key: str) -> None:
        """Begin to build a contender; it is measured by the next `judged`."""
        self._make(state.name, key, None if state.is_right(key) else state.check)

    def judged(self, entries: list[Entry]) -> Judged:
        """Measure the contenders of some tasks, which were offered."""
        keys = {task.info.name: [DEFAULT] for task in self._tasks}
        keys |= {entry.name: entry.keys for entry in entries}
        able: dict[str, dict[str, Made]] = {}
        outcomes: dict[tuple[str, str], Outcome] = {}
        with self._measurer.phases.timed("build_s"):
            begun = {name: {k: self._make(name, k) for k in each} for name, each in keys.items()}
            for name, of_task in begun.items():
                found = {key: future.result() for key, future in of_task.items()}
                if not any(isinstance(each, Made) for each in found.values()):
                    # The model needs a kernel at each place.
                    found[DEFAULT] = self._make(name, DEFAULT).result()
                able[name] = {k: made for k, made in found.items() if isinstance(made, Made)}
                outcomes |= {(name, k): e for k, e in found.items() if isinstance(e, Outcome)}
        samples = self._run({each.info.workload: able[each.info.name] for each in self._tasks})
        finals, rest_s = {}, 0.0
        weights = {entry.name: entry.state.weight for entry in entries}
        for info in (task.info for task in self._tasks):
            final = Final.of([*able[info.name]], [each[info.workload] for each in samples])
            if info.name not in weights:
                rest_s += final.time_s(0)
                continue
            finals[info.name] = final
            for place, key in enumerate(final.keys):
                outcomes[info.name, key] = Outcome([final.time_s(place) / weights[info.name]])
        return Judged(finals, outcomes, rest_s)

    def close(self) -> None:
        """Build no further."""
        self._threads.shutdown(cancel_futures=True)

    def _make(
        self, name: str, key: str, wanted: ScheduleCheck | None = None
    ) -> Future[Made | Outcome]:
        """Begin to build a contender, unless that was done before."""
        candidate = Candidate(self._modules[name], key or None)

        def made() -> Made | Outcome:
            handle = self._free.get()
            try:
                handle.send(Worker.make, candidate, wanted)
                # The model needs its default kernels, however long they take.
                found = handle.receive(_MAKE_LIMIT_S if key else _LIMIT_S, "build_timeout")
                return Outcome(None, WRONG_OUTPUT, found.fault) if found.fault else found
            except (WorkerLostError, RequestFailedError) as fault:
                return Outcome.of(fault, running=False)
            finally:
                self._free.put(handle)

        if (name, key) not in self._made:
            self._made[name, key] = self._threads.submit(made)
        return self._made[name, key]

    def _run(self, made: dict[str, dict[str, Made]]) -> list[dict[str, list[list[float]]]]:
        """What each worker measured, by workload; they run one after the other."""
        pool, phases = self._measurer.pool, self._measurer.phases
        handles = pool.handles[:_PROCESSES]
        objects: dict[str, Any] = {}
        contenders: dict[str, list[Contender]] = {}
        for workload, each in made.items():
            for place, one in enumerate(each.values()):
                symbol = f"{workload}_{place}"
                objects[symbol] = one.object
                contenders.setdefault(workload, []).append(Contender(symbol, one.shapes))
        try:
            with phases.timed("build_s"), tempfile.TemporaryDirectory(prefix="fewtune-") as scratch:
                library = f"{scratch}/contenders.so"
                try:
                    self._link(library, renamed(objects, Path(scratch)))
                except (CalledProcessError, RuntimeError) as fault:
                    # A kept kernel is damaged, or gone.
                    raise RequestFailedError(f"contenders are not linked: {fault}") from fault
                text, load = self._skeleton.model_dump_json(), Worker.load_model
                loading = [
                    self._threads.submit(handle.call, _LIMIT_S, load, text, library, contenders)
                    for handle in handles
                ]
                # All end before one that failed is told, which kills the workers.
                for ended in wait(loading).done:
                    ended.result()
            with phases.timed("run_s"):
                return [handle.call(_LIMIT_S, Worker.run_model) for handle in handles]
        except (WorkerLostError, RequestFailedError):
            # One may still be running, and its late answer would be taken for the next request's.
            for handle in pool.handles:
                handle.kill()
            raise
        finally:
            pool.tidy()

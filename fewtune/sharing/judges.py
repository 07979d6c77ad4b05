"""Measure contenders in turns: in the model where that is possible, else alone.

The kernels before it decide where a kernel finds its data: in which core's cache, or in memory. A
measurement of the kernel alone leaves them elsewhere. Of schedules that are near each other alone,
the fastest in the model is often not the first, by up to a quarter of the kernel's time. One run of
the model measures a contender of every task.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
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
from fewtune.task.extract import Task
from fewtune.trial.outcome import WRONG_OUTPUT, Outcome, RequestFailedError, WorkerLostError
from fewtune.trial.trial import Trial
from fewtune.tuning.final import Final
from fewtune.tuning.task_state import TaskState
from fewtune.workers.model_runner import Contender
from fewtune.workers.pool import WorkerHandle, call_all
from fewtune.workers.worker import Candidate, Made, Worker

# Far longer than compiling, or running, all of them takes.
_LIMIT_S = 600.0
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
    failures : dict of Outcome
        By task and key, of the others.
    rest_s : float
        Seconds of a run of the model in kernels of no contender.
    unchecked : frozenset of tuple of str
        Task and key of those that were too slow for their outputs to be compared.
    """

    finals: dict[str, Final]
    failures: dict[tuple[str, str], Outcome]
    rest_s: float = 0.0
    unchecked: frozenset[tuple[str, str]] = frozenset()


class Entry(NamedTuple):
    """A task's contenders by their traces; the first is what the library has.

    Of the others, the proposals were never measured; each has a donor, or none.
    """

    state: TaskState
    keys: list[str]
    proposals: list[Proposal]
    donors: list[str | None]

    @property
    def name(self) -> str:
        return self.state.task.info.name


class Alone:
    """Measures each task's contenders alone, on any device.

    Parameters
    ----------
    measurer : Measurer
    target : Target
    """

    def __init__(self, measurer: Measurer, target: tvm.target.Target) -> None:
        self._measurer, self._target = measurer, target

    def judged(self, entries: list[Entry]) -> Judged:
        """Measure the contenders of some tasks; those of a task are built together."""
        every = [(entry.state, key) for entry in entries for key in entry.keys]
        outcomes = self._measurer.measure(
            [replay(s.task.mod, Trial(key, None, None), self._target).mod for s, key in every],
            [module_specs(state.task.mod) for state, _ in every],
            # What a task has is first, and the bar: an earlier time may be of another pace, and who
            # is slower than the bar is not checked.
            [None] * len(every),
            races=[state.task.info.name for state, _ in every],
            checks=[s.check._replace(is_default=key == s.default_key) for s, key in every],
        )
        slow = {
            (state.task.info.name, key)
            for (state, key), outcome in zip(every, outcomes, strict=True)
            if not outcome.is_checked
        }
        found = Judged({}, {}, unchecked=frozenset(slow))
        samples: dict[str, dict[str, list[float]]] = {}
        for (state, key), outcome in zip(every, outcomes, strict=True):
            name = state.task.info.name
            if outcome.run_s:
                of_all = [state.progress.weight * each for each in outcome.run_s]
                samples.setdefault(name, {})[key] = of_all
            else:
                found.failures[name, key] = outcome
        for name, by_key in samples.items():
            found.finals[name] = Final.of(list(by_key), [list(by_key.values())])
        return found


class InModel:
    """Measures contenders where the model calls them; its processes are those of a measurer.

    Parameters
    ----------
    skeleton : Skeleton
    tasks : list of Task
        All tasks of the model.
    measurer : Measurer
    threads : int
        Of each kernel.
    """

    def __init__(
        self, skeleton: Skeleton, tasks: list[Task], measurer: Measurer, threads: int
    ) -> None:
        self._threads_of_kernels = threads
        self._skeleton, self._measurer = skeleton, measurer
        called = {site.workload for site in skeleton.sites}
        self._tasks = [task for task in tasks if task.info.workload in called]
        self._modules = {each.info.name: tvm.ir.save_json(each.mod) for each in self._tasks}
        self._made: dict[tuple[str, str], Future[Made | Outcome]] = {}
        self._free: SimpleQueue[WorkerHandle] = SimpleQueue()
        for handle in measurer.pool.handles:
            self._free.put(handle)
        self._threads = ThreadPoolExecutor(len(measurer.pool.handles))

    def offer(self, state: TaskState, key: str) -> None:
        """Begin to build a contender; it is measured by the next `judged`."""
        wanted = None if state.is_right(key) else state.check
        self._make(state.task.info.name, key, wanted)

    def judged(self, entries: list[Entry]) -> Judged:
        """Measure the contenders of some tasks, which were offered."""
        keys = {task.info.name: [DEFAULT] for task in self._tasks}
        keys |= {entry.name: entry.keys for entry in entries}
        with self._measurer.phases.timed("build_s"):
            for name in keys:
                for key in keys[name]:
                    self._make(name, key, None)
            made = {each: future.result() for each, future in self._made.items()}
        failures = {
            (name, key): failure
            for name in keys
            for key in keys[name]
            if (failure := _failure(made[name, key])) is not None
        }
        able = {n: [key for key in keys[n] if (n, key) not in failures] for n in keys}
        for name in [name for name, left in able.items() if not left]:
            # The model needs a kernel at each place.
            self._make(name, DEFAULT, None)
            made[name, DEFAULT] = self._made[name, DEFAULT].result()
            able[name] = [DEFAULT]
        samples = self._run(
            {
                task.info.workload: [made[task.info.name, key] for key in able[task.info.name]]
                for task in self._tasks
            }
        )
        finals = {
            task.info.name: Final.of(
                able[task.info.name], [each[task.info.workload] for each in samples]
            )
            for task in self._tasks
        }
        asked = {entry.name for entry in entries}
        return Judged(
            {name: final for name, final in finals.items() if name in asked},
            failures,
            sum(final.time_s(0) for name, final in finals.items() if name not in asked),
        )

    def close(self) -> None:
        """Build no further."""
        self._threads.shutdown(cancel_futures=True)

    def _make(self, name: str, key: str, wanted: ScheduleCheck | None) -> None:
        if (name, key) in self._made:
            return
        candidate = Candidate(self._modules[name], key or None)

        def made() -> Made | Outcome:
            handle = self._free.get()
            try:
                return handle.call(_LIMIT_S, Worker.make, candidate, wanted)
            except (WorkerLostError, RequestFailedError) as fault:
                return Outcome.of(fault, running=False)
            finally:
                self._free.put(handle)

        self._made[name, key] = self._threads.submit(made)

    def _run(self, made: dict[str, list[Any]]) -> list[dict[str, list[list[float]]]]:
        """What each worker measured, by workload; they run one after the other."""
        pool, phases = self._measurer.pool, self._measurer.phases
        handles = pool.handles[:_PROCESSES]
        objects = {f"{w}_{n}": one.object for w, each in made.items() for n, one in enumerate(each)}
        contenders = {
            workload: [Contender(f"{workload}_{n}", one.shapes) for n, one in enumerate(each)]
            for workload, each in made.items()
        }
        try:
            with phases.timed("build_s"), tempfile.TemporaryDirectory(prefix="fewtune-") as scratch:
                library = f"{scratch}/contenders.so"
                try:
                    link = with_own_threads(self._threads_of_kernels)
                    link(library, renamed(objects, Path(scratch)))
                except (CalledProcessError, RuntimeError) as fault:
                    # A kept kernel is damaged, or gone.
                    raise RequestFailedError(f"contenders are not linked: {fault}") from fault
                given = [(self._skeleton.model_dump_json(), library, contenders)] * len(handles)
                call_all(handles, _LIMIT_S, Worker.load_model, given)
            with phases.timed("run_s"):
                return [handle.call(_LIMIT_S, Worker.run_model) for handle in handles]
        except (WorkerLostError, RequestFailedError):
            # One may still be running, and its late answer would be taken for the next request's.
            for handle in pool.handles:
                handle.kill()
            raise
        finally:
            pool.tidy()


def _failure(found: Made | Outcome) -> Outcome | None:
    if isinstance(found, Outcome):
        return found
    return Outcome(None, WRONG_OUTPUT, found.fault) if found.fault else None


def near(ranked: Iterable[Trial], ratio: float, most: int) -> list[str]:
    """The keys of the fastest trials, given fastest first, that take at most ``ratio`` times it."""
    fastest_s, *_ = [trial.outcome.median_s for trial in ranked] or [0.0]
    keys = [trial.key for trial in ranked if trial.outcome.median_s <= ratio * fastest_s]
    return keys[:most]

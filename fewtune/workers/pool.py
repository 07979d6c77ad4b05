"""The parent's side of the build and measure workers.

A worker that crashes, hangs or grows is replaced; its present candidate counts as failed, with the
cause. Workers are recycled by memory and age, since TVM's compiler leaks (apache/tvm #11096,
#11074): MetaSchedule restarts its pool for every batch for that reason.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

from fewtune.errors import MachineError
from fewtune.process.child_python import SHOW_STDERR
from fewtune.trial.outcome import Built, Outcome, RequestFailedError, WorkerLostError
from fewtune.workers.handle import WorkerHandle, WorkerOptions
from fewtune.workers.worker import Worker

# Workers that a batch may lose before they take a candidate.
_MOST_IDLE_DEATHS = 5
_RECENT_BUILDS = 64
_LEAST_BUILD_LIMIT_S = 2.0

# Takes a candidate's place, and its build.
Done = Callable[[int, Built | Outcome], None]


def _next(queue: deque[int]) -> int | None:
    """Take the first item; threads share the queue."""
    try:
        return queue.popleft()
    except IndexError:
        return None


class WorkerPool:
    """A fixed number of workers that build in parallel.

    Parameters
    ----------
    target_json : str
        The resolved target.
    threads : int
        Threads of a measured kernel.
    workers : int
        Processes; as many as the cores that build.
    options : WorkerOptions
    kind, settings
        The workers' class, with ``build`` and ``forget`` as `Worker` has them, and what it is made
        of.

    Attributes
    ----------
    devices : int
        Devices that measure in parallel.
    """

    devices = 1

    def __init__(
        self,
        target_json: str,
        threads: int,
        workers: int,
        options: WorkerOptions | None = None,
        kind: Any = Worker,
        settings: tuple[Any, ...] = (),
    ) -> None:
        self.options = options or WorkerOptions()
        self._kind = kind
        own = (target_json, threads, self.options.memory_limit_bytes)
        self.handles = [
            WorkerHandle(kind, settings or own, threads) for _ in range(max(1, workers))
        ]
        self._numbers = count(1)
        self._build_s: deque[float] = deque(maxlen=_RECENT_BUILDS)
        for handle in self.handles:
            handle.start()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End every worker."""
        for handle in self.handles:
            handle.kill()

    @property
    def build_limit_s(self) -> float:
        """Seconds a build may take.

        A candidate takes 0.1 s to build. One that takes ten times as long has an exploded loop
        nest: it also runs slowly, and would delay its whole batch.
        """
        limit_s = self.options.build_timeout_s
        if len(self._build_s) < _RECENT_BUILDS // 4:
            return limit_s
        usual_s = statistics.median(tuple(self._build_s))
        return min(limit_s, max(_LEAST_BUILD_LIMIT_S, 10 * usual_s))

    def build(self, modules: list[str]) -> list[Built | Outcome]:
        """Compile modules, each on a free worker.

        Parameters
        ----------
        modules : list of str
            Scheduled modules as TVM JSON.

        Returns
        -------
        results : list of Built or Outcome
            In the order of ``modules``.

        Raises
        ------
        MachineError
            If workers keep dying before they take a candidate.
        """
        results: dict[int, Built | Outcome] = {}

        self.run(modules, results.__setitem__)
        return [results[place] for place in sorted(results)]

    def run(self, modules: list[str], done: Done) -> None:
        """Compile modules, each on a free worker, and call a function after each build.

        While a GPU or a board runs a kernel, the processor is idle: the other workers go on
        building. On a CPU, builds and measurements would share cores, which doubles or triples the
        times.

        Parameters
        ----------
        modules : list of str
        done : callable
            Called for each candidate, in a thread of its worker, which waits for it.

        Raises
        ------
        MachineError
            If workers keep dying before they take a candidate.
        """
        queue, deaths = deque(range(len(modules))), count(1)

        def take(worker: int, place: int) -> None:
            number = next(self._numbers)
            self.handles[worker].send(self._kind.build, number, modules[place])
            done(place, self._build_reply(worker, number))

        def work(worker: int) -> None:
            while (place := _next(queue)) is not None:
                try:
                    take(worker, place)
                except WorkerLostError as lost:
                    # The worker died while idle. It is not this candidate's fault: try it again.
                    queue.appendleft(place)
                    if next(deaths) > _MOST_IDLE_DEATHS:
                        queue.clear()
                        raise MachineError(
                            f"build workers die before they begin ({lost}); run again with "
                            f"{SHOW_STDERR}=1 to see why"
                        ) from None
                except BaseException:
                    queue.clear()
                    raise

        with ThreadPoolExecutor(len(self.handles)) as threads:
            list(threads.map(work, range(len(self.handles))))

    def _build_reply(self, worker: int, number: int) -> Built | Outcome:
        handle = self.handles[worker]
        try:
            took_s = handle.receive(self.build_limit_s, "build_timeout")
        except (WorkerLostError, RequestFailedError) as fault:
            return Outcome.of(fault, running=False)
        handle.builds += 1
        self._build_s.append(took_s)
        return Built(worker, number, handle.lives)

    def tidy(self) -> None:
        """Drop all builds; replace workers that are too old or too large."""
        for handle in self.handles:
            try:
                resident = handle.call(10, self._kind.forget)
            except (WorkerLostError, RequestFailedError):
                resident = self.options.recycle_bytes + 1
            too_large = resident > self.options.recycle_bytes
            if too_large or handle.builds >= self.options.recycle_builds:
                handle.kill()
                handle.start()

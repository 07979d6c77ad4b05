"""The parent's side of the build and measure workers.

A worker that crashes, hangs or grows is replaced; its present candidate counts as failed, with the
cause. Workers are recycled by memory and age, since TVM's compiler leaks (apache/tvm #11096,
#11074): MetaSchedule restarts its pool for every batch for that reason.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from multiprocessing.connection import wait
from typing import Any

from fewtune.errors import MachineError
from fewtune.process.child_python import SHOW_STDERR
from fewtune.trial.worker_reply import Built, Failure, RequestFailedError, WorkerLostError
from fewtune.workers.build_cache import Kept
from fewtune.workers.build_queue import Feed
from fewtune.workers.handle import WorkerHandle, WorkerOptions

# Workers that a call of `WorkerPool.build` may lose before they take a candidate.
_MOST_IDLE_DEATHS = 5
_RECENT_BUILDS = 64
_LEAST_BUILD_LIMIT_S = 2.0


class WorkerPool:
    """A fixed number of workers that build in parallel and measure one at a time.

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
        As of `WorkerHandle`.

    Attributes
    ----------
    kept : Kept
        The builds that are not dropped between batches.
    """

    def __init__(
        self,
        target_json: str,
        threads: int,
        workers: int,
        options: WorkerOptions | None = None,
        kind: str = WorkerHandle.kind,
        settings: tuple[Any, ...] = (),
    ) -> None:
        self.options = options or WorkerOptions()
        self.handles = [
            WorkerHandle(target_json, threads, self.options, kind, settings)
            for _ in range(max(1, workers))
        ]
        self.kept = Kept()
        self._next_number = 0
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
        usual_s = statistics.median(self._build_s)
        return min(limit_s, max(_LEAST_BUILD_LIMIT_S, 10 * usual_s))

    def next_number(self) -> int:
        """A number that no candidate of this pool has had."""
        self._next_number += 1
        return self._next_number

    def build(self, modules: list[str] | Feed) -> list[Built | Failure]:
        """Compile modules, each on a free worker.

        Parameters
        ----------
        modules : list of str, or Feed
            Scheduled modules as TVM JSON; an open feed is waited for.

        Returns
        -------
        results : list of Built or Failure
            In the order of ``modules``.

        Raises
        ------
        MachineError
            If workers keep dying before they take a candidate.
        """
        feed = modules if isinstance(modules, Feed) else Feed(modules)
        results: dict[int, Built | Failure] = {}
        busy: dict[int, tuple[int, int, float]] = {}
        idle_deaths = 0
        while feed.goes_on or busy:
            for index in range(len(self.handles)):
                place = feed.take() if index not in busy else None
                if place is None:
                    continue
                number = self.next_number()
                try:
                    self.handles[index].send("build", number, feed[place])
                except WorkerLostError as lost:
                    # The worker died while idle. It is not this candidate's fault: try it again.
                    feed.put_back(place)
                    idle_deaths += 1
                    if idle_deaths > _MOST_IDLE_DEATHS:
                        raise MachineError(
                            f"build workers die before they begin ({lost}); run again with "
                            f"{SHOW_STDERR}=1 to see why"
                        ) from None
                    continue
                busy[index] = (place, number, time.monotonic() + self.build_limit_s)
            for index in self._awaited(busy, feed):
                place, number, _ = busy.pop(index)
                results[place] = self._built(index, number)
        return [results[place] for place in sorted(results)]

    def _awaited(self, busy: dict[int, tuple[int, int, float]], feed: Feed) -> set[int]:
        """Wait for an event; return the workers that answered or exceeded their time."""
        connections = {self.handles[index].connection: index for index in busy}
        news = [feed.news] if feed.news is not None and feed.goes_on else []
        if not connections and not news:
            return set()
        first_deadline = min((deadline for _, _, deadline in busy.values()), default=None)
        limit_s = None if first_deadline is None else max(0.0, first_deadline - time.monotonic())
        ready = wait([*connections, *news], limit_s)
        if feed.news in ready:
            feed.read_news()
        now_s = time.monotonic()
        late = [index for index, (_, _, deadline) in busy.items() if deadline <= now_s]
        return {*(connections[c] for c in ready if c is not feed.news), *late}  # type: ignore[index]

    def _built(self, index: int, number: int) -> Built | Failure:
        handle = self.handles[index]
        try:
            build_s = handle.receive(0.001, "build_timeout")
        except (WorkerLostError, RequestFailedError) as fault:
            return Failure.of(fault, running=False)
        return self.built(index, number, build_s)

    def built(self, index: int, number: int, build_s: float) -> Built:
        """Note a build of worker ``index``."""
        handle = self.handles[index]
        handle.builds += 1
        self._build_s.append(build_s)
        return Built(index, number, handle.lives)

    def kept_build(self, workload: str, key: str) -> Built | None:
        """The build of a task's trace, if a worker still has it."""
        built = self.kept.find(workload, key)
        is_lost = built is None or self.handles[built.worker].lost_since(built)
        return None if is_lost else built

    def tidy(self) -> None:
        """Drop builds that are not kept; replace workers that are too old or too large."""
        for index, handle in enumerate(self.handles):
            try:
                handle.call("forget", self.kept.numbers(index), timeout_s=10)
                resident = handle.call("resident_bytes", timeout_s=10)
            except (WorkerLostError, RequestFailedError):
                handle.kill()
                handle.start()
                continue
            too_large = resident > self.options.recycle_bytes
            if too_large or handle.builds >= self.options.recycle_builds:
                handle.kill()
                handle.start()

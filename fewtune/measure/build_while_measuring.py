"""Build while the device measures: for devices that do not share their cores with the builds.

While a GPU runs a kernel, the processor is idle. Here every worker builds its candidates, and
measures them when the device is free; the others go on building meanwhile. One candidate is
measured at a time. On a CPU, builds and measurements would share cores:
`benchmarks/parts/racing.py` shows how that changes the times.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Any

from fewtune.trial.worker_reply import Built, Failure, RequestFailedError, WorkerLostError
from fewtune.workers.pool import WorkerPool

# Built candidates that a worker may hold while it waits for the device.
_MOST_WAITING = 4
# A candidate whose worker died while it waited is built again so often.
_MOST_REBUILDS = 2

Measure = Callable[[int], tuple[Any, ...]]
Done = Callable[[int, Failure | list[float], Built | None], None]


@dataclass
class _Job:
    """A worker's present job: a build or a measurement of one candidate."""

    place: int
    number: int
    deadline_s: float
    measures: bool


@dataclass
class Overlap:
    """Builds and measures one batch.

    Parameters
    ----------
    pool : WorkerPool
    payload : list of str
        Scheduled modules as TVM JSON.
    request : callable
        Given a candidate's place, the arguments of its measurement after its number.
    done : callable
        Called for each candidate when it is done: with its place, its seconds or its failure, and
        the build that was measured.

    Attributes
    ----------
    device_s : float
        Seconds for which the device was busy.
    """

    pool: WorkerPool
    payload: list[str]
    request: Measure
    done: Done
    device_s: float = 0.0
    _queue: list[int] = field(init=False)
    _jobs: dict[int, _Job] = field(default_factory=dict)
    _waiting: list[tuple[int, Built]] = field(default_factory=list)
    _rebuilds: dict[int, int] = field(default_factory=dict)
    _measure_began_s: float = 0.0

    def __post_init__(self) -> None:
        self._queue = list(range(len(self.payload)))[::-1]

    def run(self) -> None:
        """Build and measure the whole batch."""
        while self._queue or self._waiting or self._jobs:
            for index in range(len(self.pool.handles)):
                if index not in self._jobs:
                    self._start(index)
            if self._jobs:
                self._await()

    def _start(self, index: int) -> None:
        """Give an idle worker its next job: the device first, if it is free."""
        mine = [entry for entry in self._waiting if entry[1].worker == index]
        if mine and not any(job.measures for job in self._jobs.values()):
            place, built = mine[0]
            self._waiting.remove(mine[0])
            if self.pool.handles[index].lost_since(built):
                self._again(place)
                return
            limit_s = self.pool.options.run_timeout_s
            request = ("measure", built.number, *self.request(place))
            self._measure_began_s = time.monotonic()
            self._send(index, _Job(place, built.number, limit_s, True), request)
        elif self._queue and len(mine) < _MOST_WAITING:
            place = self._queue.pop()
            number = self.pool.next_number()
            job = _Job(place, number, self.pool.build_limit_s, False)
            self._send(index, job, ("build", number, self.payload[place]))

    def _send(self, index: int, job: _Job, request: tuple[Any, ...]) -> None:
        try:
            self.pool.handles[index].send(*request)
        except WorkerLostError:
            self._again(job.place)
            return
        job.deadline_s += time.monotonic()
        self._jobs[index] = job

    def _await(self) -> None:
        """Wait for the next reply, or for the first deadline."""
        connections = {self.pool.handles[index].connection: index for index in self._jobs}
        first_s = min(job.deadline_s for job in self._jobs.values())
        ready = wait(connections, max(0.0, first_s - time.monotonic()))
        late = [i for i, job in self._jobs.items() if job.deadline_s <= time.monotonic()]
        for index in {*(connections[c] for c in ready), *late}:  # type: ignore[index]
            self._take(index, self._jobs.pop(index))

    def _take(self, index: int, job: _Job) -> None:
        handle = self.pool.handles[index]
        timeout_cause = "run_timeout" if job.measures else "build_timeout"
        try:
            reply = handle.receive(0.001, timeout_cause)
        except (WorkerLostError, RequestFailedError) as fault:
            self.done(job.place, Failure.of(fault, running=job.measures), None)
            return
        finally:
            if job.measures:
                self.device_s += time.monotonic() - self._measure_began_s
        if job.measures:
            self.done(job.place, reply.run_s, Built(index, job.number, handle.lives))
        else:
            self._waiting.append((job.place, self.pool.built(index, job.number, reply)))

    def _again(self, place: int) -> None:
        self._rebuilds[place] = self._rebuilds.get(place, 0) + 1
        if self._rebuilds[place] > _MOST_REBUILDS:
            self.done(place, Failure("worker_crash", "its worker died again and again"), None)
        else:
            self._queue.append(place)

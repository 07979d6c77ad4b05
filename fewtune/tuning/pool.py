"""The parent's side of the build and measure workers.

A worker that crashes, hangs or grows is replaced; what it was doing counts as one failed
candidate with its cause. Workers are recycled by memory and age, since TVM's compiler leaks
(apache/tvm #11096, #11074): upstream restarts its pool every batch for that reason.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, Literal

from fewtune.errors import MachineError
from fewtune.tuning.nursery import ForkedWorker, Nursery

Cause = Literal["build_error", "build_timeout", "runtime_error", "run_timeout", "worker_crash"]

# Workers that a call of `WorkerPool.build` may lose before they take a candidate.
_MOST_IDLE_DEATHS = 5


@dataclass(frozen=True)
class WorkerOptions:
    """Limits of one worker.

    Attributes
    ----------
    build_timeout_s, run_timeout_s : float
        Seconds one candidate may take to build, to be measured.
    recycle_bytes : int
        Resident memory above which a worker is replaced between batches.
    recycle_builds : int
        Builds after which a worker is replaced between batches.
    memory_limit_bytes : int
        Hard limit of a worker's data segment; 0 for none.
    """

    # A candidate takes 0.2 s to build. One that takes twenty times that has an exploded loop nest:
    # it is slow to run as well, and would hold up its whole batch.
    build_timeout_s: float = 5.0
    run_timeout_s: float = 10.0
    recycle_bytes: int = 1200 * 2**20
    recycle_builds: int = 2000
    memory_limit_bytes: int = 8 * 2**30


class WorkerLostError(Exception):
    """The worker died or had to be killed; ``cause`` says which."""

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(message)
        self.cause = cause


class RequestFailedError(Exception):
    """The worker answered that the request failed; it lives on."""


@dataclass
class WorkerHandle:
    """One worker process."""

    target_json: str
    threads: int
    options: WorkerOptions
    nursery: Nursery | None = None
    builds: int = 0
    _process: subprocess.Popen | ForkedWorker | None = field(default=None, repr=False)
    _connection: Connection | None = field(default=None, repr=False)
    _ready: bool = False
    lives: int = 0

    def start(self) -> None:
        """Start the process; it gets ready while the caller goes on."""
        here, there = socket.socketpair()
        environment = {"TVM_NUM_THREADS": str(self.threads), "OMP_NUM_THREADS": "1"}
        if self.nursery is not None:
            self._process = self.nursery.spawn(there.fileno(), environment)
        else:
            path = os.pathsep.join(p for p in sys.path if p)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "fewtune.tuning.worker", str(there.fileno())],
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **environment, "PYTHONPATH": path},
            )
        there.close()
        self._connection = Connection(here.detach())
        # One that dies at once is found out when its readiness is awaited.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._connection.send(
                ("start", self.target_json, self.threads, self.options.memory_limit_bytes)
            )
        self._ready = False
        self.builds = 0
        self.lives += 1

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else -1

    @property
    def connection(self) -> Connection:
        if self._connection is None:
            self.start()
        assert self._connection is not None
        return self._connection

    def send(self, *request: Any) -> None:
        """Send a request; its reply is fetched by `receive`.

        Raises
        ------
        WorkerLostError
            If the process has died since.
        """
        connection = self.connection
        self._await_ready()
        try:
            connection.send(request)
        except (BrokenPipeError, ConnectionResetError):
            raise self._lost() from None

    def receive(self, timeout_s: float, timeout_cause: str) -> Any:
        """Wait for the reply to the oldest request.

        Raises
        ------
        WorkerLostError
            If the process died, or did not answer in ``timeout_s`` and was killed.
        RequestFailedError
            If the request failed inside the worker.
        """
        connection = self.connection
        try:
            if not connection.poll(timeout_s):
                self.kill()
                raise WorkerLostError(timeout_cause, f"no answer in {timeout_s:g} s, killed")
            status, value = connection.recv()
        except (EOFError, ConnectionResetError):
            raise self._lost() from None
        if status == "failed":
            raise RequestFailedError(value)
        return value

    def call(self, *request: Any, timeout_s: float, timeout_cause: str = "run_timeout") -> Any:
        """Send a request and wait for its reply."""
        self.send(*request)
        return self.receive(timeout_s, timeout_cause)

    def lost_since(self, built: Built) -> bool:
        """Whether the process that held ``built`` is gone."""
        return self._process is None or self.lives != built.life

    def kill(self) -> None:
        """Kill the process and forget it; the next request starts another."""
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = self._connection = None

    def _await_ready(self) -> None:
        if self._ready:
            return
        try:
            if not self.connection.poll(120):
                self.kill()
                raise WorkerLostError("worker_crash", "a worker did not start in 120 s")
            self.connection.recv()
        except (EOFError, ConnectionResetError):
            raise self._lost() from None
        self._ready = True

    def _lost(self) -> WorkerLostError:
        code = self._process.wait() if self._process is not None else None
        how = f"exit code {code}"
        if code is not None and code < 0:
            how = signal.Signals(-code).name
        self.kill()
        return WorkerLostError("worker_crash", f"a worker died: {how}")


@dataclass(frozen=True)
class Built:
    """A candidate that was compiled, and where."""

    worker: int
    number: int
    build_s: float
    life: int = 0


@dataclass(frozen=True)
class Failure:
    """A candidate that failed: its cause and the last of what was said."""

    cause: str
    message: str


class WorkerPool:
    """A fixed number of workers that build in parallel and measure one at a time.

    Parameters
    ----------
    target_json : str
        The resolved target.
    threads : int
        Threads of a measured kernel.
    workers : int
        Processes; as many as cores that may build at once.
    options : WorkerOptions
    nursery : Nursery, optional
        Forks the workers; without one, each starts as a new process.
    """

    def __init__(
        self,
        target_json: str,
        threads: int,
        workers: int,
        options: WorkerOptions | None = None,
        nursery: Nursery | None = None,
    ) -> None:
        self.options = options or WorkerOptions()
        self.handles = [
            WorkerHandle(target_json, threads, self.options, nursery)
            for _ in range(max(1, workers))
        ]
        self._next_number = 0
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

    def next_number(self) -> int:
        """A number that no candidate of this pool has had."""
        self._next_number += 1
        return self._next_number

    def build(self, modules: list[str], only: int | None = None) -> list[Built | Failure]:
        """Compile modules, each on whichever worker is free.

        Parameters
        ----------
        modules : list of str
            Scheduled modules as TVM JSON.
        only : int, optional
            The one worker to use, for candidates that are to meet in one process.

        Returns
        -------
        results : list of Built or Failure
            In the order of ``modules``.

        Raises
        ------
        MachineError
            If workers keep dying before they take a candidate.
        """
        results: list[Built | Failure | None] = [None] * len(modules)
        queue = list(range(len(modules)))[::-1]
        busy: dict[int, tuple[int, int, float]] = {}
        idle_deaths = 0
        usable = range(len(self.handles)) if only is None else [only]
        while queue or busy:
            for index in usable:
                if queue and index not in busy:
                    place = queue.pop()
                    number = self.next_number()
                    try:
                        self.handles[index].send("build", number, modules[place])
                    except WorkerLostError as lost:
                        # It died idle: not this candidate's fault, so it is tried again.
                        queue.append(place)
                        idle_deaths += 1
                        if idle_deaths > _MOST_IDLE_DEATHS:
                            raise MachineError(
                                f"build workers die before they begin ({lost}); run again with "
                                "FEWTUNE_WORKER_STDERR=1 to see why"
                            ) from None
                        continue
                    deadline = time.monotonic() + self.options.build_timeout_s
                    busy[index] = (place, number, deadline)
            if not busy:
                continue
            first_deadline = min(deadline for _, _, deadline in busy.values())
            connections = {self.handles[index].connection: index for index in busy}
            ready = wait(connections, max(0.0, first_deadline - time.monotonic()))
            late = [i for i, (_, _, deadline) in busy.items() if deadline <= time.monotonic()]
            for index in {*(connections[c] for c in ready), *late}:  # type: ignore[index]
                place, number, _ = busy.pop(index)
                results[place] = self._built(index, number)
        return [result for result in results if result is not None]

    def _built(self, index: int, number: int) -> Built | Failure:
        handle = self.handles[index]
        try:
            build_s = handle.receive(0.001, "build_timeout")
        except WorkerLostError as lost:
            return Failure(lost.cause, str(lost))
        except RequestFailedError as failed:
            return Failure("build_error", str(failed))
        handle.builds += 1
        return Built(index, number, build_s, handle.lives)

    def tidy(self) -> None:
        """Drop what was built; replace workers that are too old or too large."""
        for handle in self.handles:
            try:
                handle.call("forget", timeout_s=10)
                resident = handle.call("resident_bytes", timeout_s=10)
            except (WorkerLostError, RequestFailedError):
                handle.kill()
                handle.start()
                continue
            too_large = resident > self.options.recycle_bytes
            if too_large or handle.builds >= self.options.recycle_builds:
                handle.kill()
                handle.start()

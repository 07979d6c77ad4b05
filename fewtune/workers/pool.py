"""The parent's side of the build and measure workers.

A worker that crashes, hangs or grows is replaced; its present candidate counts as failed, with the
cause. Workers are recycled by memory, since TVM's compiler leaks (apache/tvm #11096, #11074):
MetaSchedule restarts its pool for every batch for that reason.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from pkgutil import resolve_name
from queue import SimpleQueue
from typing import Any, TypeVar, TypeVarTuple

from fewtune.errors import DISKS_FAULT, MachineError, disk_line
from fewtune.process.child_python import SHOW_STDERR, ending, parents_connection, started
from fewtune.trial.outcome import Built, Outcome, RequestFailedError, WorkerLostError
from fewtune.util.files import full_disk
from fewtune.workers.worker import Worker

Given = TypeVarTuple("Given")
Result = TypeVar("Result")
_START_S = 120


@dataclass(frozen=True)
class WorkerOptions:
    """Limits of one worker.

    Attributes
    ----------
    build_timeout_s, run_timeout_s : float
        Seconds that a candidate may take to build, and to be measured.
    recycle_bytes : int
        Resident memory above which a worker is replaced between batches.
    memory_limit_bytes : int
        Hard limit of a worker's data segment; 0 for none.
    """

    build_timeout_s: float = 5.0
    run_timeout_s: float = 10.0
    recycle_bytes: int = 1200 * 2**20
    memory_limit_bytes: int = 8 * 2**30


@dataclass
class WorkerHandle:
    """One worker process: an object of class ``kind``, made of ``settings``.

    A request is one of its methods, and the arguments. Requests and replies go over a socket that
    only the parent holds, the process's standard input; the worker ends when the socket closes, so
    it never outlives its parent.
    """

    kind: Any
    settings: tuple[Any, ...]
    threads: int
    lives: int = 0
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    _connection: Connection | None = field(default=None, repr=False)
    _ready: bool = False

    def start(self) -> None:
        """Start the process; it gets ready while the caller goes on."""
        self.process, self._connection = started(
            "fewtune.workers.pool:serve",
            f"{self.kind.__module__}:{self.kind.__qualname__}",
            environment={"TVM_NUM_THREADS": str(self.threads), "OMP_NUM_THREADS": "1"},
        )
        # A process that dies immediately is noticed when it is waited for.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._connection.send(self.settings)
        self._ready = False
        self.lives += 1

    @property
    def connection(self) -> Connection:
        if self._connection is None:
            self.start()
        assert self._connection is not None
        return self._connection

    def send(self, method: Callable[[Any, *Given], object], *arguments: *Given) -> None:
        """Send a request; its reply is fetched by `receive`.

        Raises
        ------
        WorkerLostError
            If the process has died since.
        """
        connection = self.connection
        if not self._ready:
            self._received(_START_S, "worker_crash", f"a worker did not start in {_START_S} s")
            self._ready = True
        try:
            connection.send((method, arguments))
        except (BrokenPipeError, ConnectionResetError):
            raise self._lost() from None

    def receive(self, timeout_s: float, timeout_cause: str = "run_timeout") -> Any:
        """Wait for the reply to the oldest request.

        Raises
        ------
        WorkerLostError
            If the process died, or did not answer in ``timeout_s`` and was killed.
        RequestFailedError
            If the request failed inside the worker.
        MachineError
            If the system refused the worker room on a disk, or the like; or if it died on a full
            disk.
        """
        value, fault = self._received(timeout_s, timeout_cause, f"no answer in {timeout_s:g} s")
        if fault is not None:
            raise fault
        return value

    def call(
        self,
        timeout_s: float,
        method: Callable[[Any, *Given], Result],
        *arguments: *Given,
    ) -> Result:
        """Send a request and wait for its reply."""
        self.send(method, *arguments)
        return self.receive(timeout_s)

    def lost_since(self, built: Built) -> bool:
        """Whether the process that held ``built`` is gone."""
        return self.process is None or self.lives != built.life

    def kill(self) -> None:
        """Kill the process and forget it; the next request starts another."""
        if self._connection is not None:
            self._connection.close()
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.process = self._connection = None

    def _received(self, timeout_s: float, cause: str, late: str) -> Any:
        """The next message; a worker that sends none in time is killed."""
        connection = self.connection
        try:
            if not connection.poll(timeout_s):
                self.kill()
                raise WorkerLostError(cause, f"{late}, killed")
            return connection.recv()
        except (EOFError, ConnectionResetError):
            raise self._lost() from None

    def _lost(self) -> WorkerLostError | MachineError:
        code = self.process.wait() if self.process is not None else None
        self.kill()
        if code is not None and code < 0:
            no_room = full_disk(Path(tempfile.gettempdir()))
            if no_room is not None:
                # A full disk is no candidate's fault: it must not be noted as failed.
                return MachineError(disk_line(no_room))
        return WorkerLostError("worker_crash", f"a worker {ending(code)}")


def serve(kind: str) -> None:
    """Answer requests until the parent closes the socket; the first one has the settings."""
    connection = parents_connection()
    worker = resolve_name(kind)(*connection.recv())
    worker.get_ready()
    connection.send(("ready", os.getpid()))
    with contextlib.suppress(EOFError, ConnectionResetError, BrokenPipeError):
        while True:
            method, arguments = connection.recv()
            value: Any = None
            raised: Exception | None = None
            try:
                value = method(worker, *arguments)
            except MemoryError:
                raised = RequestFailedError("out of memory")
            except Exception as fault:  # noqa: BLE001 (any exception is the candidate's failure)
                raised = RequestFailedError((str(fault).strip() or type(fault).__name__)[-2000:])
                if isinstance(fault, OSError) and fault.errno in DISKS_FAULT:
                    # A full disk is no candidate's fault: it must not be noted as failed.
                    raised = MachineError(disk_line(fault))
            connection.send((value, raised))


# Workers that a batch may lose before they take a candidate.
_MOST_IDLE_DEATHS = 5
_RECENT_BUILDS = 64
_LEAST_BUILD_LIMIT_S = 2.0

# Takes a candidate's place, and its build.
Done = Callable[[int, Built | Outcome], None]


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
        self.handles = [WorkerHandle(kind, settings or own, threads) for _ in range(workers)]
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
        free, deaths = SimpleQueue[int](), count(1)
        for worker in range(len(self.handles)):
            free.put(worker)

        def work(place: int) -> None:
            worker = free.get()
            try:
                done(place, self._built(worker, modules[place], deaths))
            finally:
                free.put(worker)

        with ThreadPoolExecutor(len(self.handles)) as threads:
            # The first exception cancels what has not begun.
            list(threads.map(work, range(len(modules))))

    def _built(self, worker: int, module: str, deaths: Iterator[int]) -> Built | Outcome:
        handle, number = self.handles[worker], next(self._numbers)
        while True:
            try:
                handle.send(self._kind.build, number, module)
                break
            except WorkerLostError as lost:
                # The worker died while idle. It is not this candidate's fault: try it again.
                if next(deaths) > _MOST_IDLE_DEATHS:
                    raise MachineError(
                        f"build workers die before they begin ({lost}); run again with "
                        f"{SHOW_STDERR}=1 to see why"
                    ) from None
        try:
            took_s = handle.receive(self.build_limit_s, "build_timeout")
        except (WorkerLostError, RequestFailedError) as fault:
            return Outcome.of(fault, running=False)
        self._build_s.append(took_s)
        return Built(worker, number, handle.lives)

    def tidy(self) -> None:
        """Drop all builds; replace workers that are too large."""
        for handle in self.handles:
            try:
                resident = handle.call(10, self._kind.forget)
            except (WorkerLostError, RequestFailedError):
                resident = self.options.recycle_bytes + 1
            if resident > self.options.recycle_bytes:
                handle.kill()
                handle.start()

"""One worker process: requests, replies, limits, and its end.

The protocol is a sequence of requests and replies over a socket that only the parent holds, the
process's standard input; the worker ends when the socket closes, so it never outlives its parent.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Concatenate, ParamSpec, TypeVar

from fewtune.errors import DISKS_FAULT, MachineError, disk_line
from fewtune.process.child_python import ending, parents_connection, started
from fewtune.trial.outcome import Built, RequestFailedError, WorkerLostError
from fewtune.util.files import full_disk

Given = ParamSpec("Given")
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
    recycle_builds : int
        Builds after which a worker is replaced between batches.
    memory_limit_bytes : int
        Hard limit of a worker's data segment; 0 for none.
    """

    build_timeout_s: float = 5.0
    run_timeout_s: float = 10.0
    recycle_bytes: int = 1200 * 2**20
    recycle_builds: int = 250
    memory_limit_bytes: int = 8 * 2**30


@dataclass
class WorkerHandle:
    """One worker process: an object of class ``kind``, made of ``settings``.

    A request is one of its methods, and the arguments.
    """

    kind: Any
    settings: tuple[Any, ...]
    threads: int
    builds: int = 0
    lives: int = 0
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    _connection: Connection | None = field(default=None, repr=False)
    _ready: bool = False

    def start(self) -> None:
        """Start the process; it gets ready while the caller goes on."""
        self._process, self._connection = started(
            "fewtune.workers.handle:serve",
            f"{self.kind.__module__}:{self.kind.__qualname__}",
            environment={"TVM_NUM_THREADS": str(self.threads), "OMP_NUM_THREADS": "1"},
        )
        # A process that dies immediately is noticed when it is waited for.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._connection.send(self.settings)
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

    def send(
        self,
        method: Callable[Concatenate[Any, Given], object],
        *arguments: Given.args,
        **named: Given.kwargs,
    ) -> None:
        """Send a request; its reply is fetched by `receive`.

        Raises
        ------
        WorkerLostError
            If the process has died since.
        """
        connection = self.connection
        self._await_ready()
        try:
            connection.send((method, arguments, named))
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
        status, value = self._received(timeout_s, timeout_cause, f"no answer in {timeout_s:g} s")
        if status == "failed":
            raise RequestFailedError(value)
        if status == "machine":
            raise MachineError(value)
        return value

    def call(
        self,
        timeout_s: float,
        method: Callable[Concatenate[Any, Given], Result],
        *arguments: Given.args,
        **named: Given.kwargs,
    ) -> Result:
        """Send a request and wait for its reply."""
        self.send(method, *arguments, **named)
        return self.receive(timeout_s)

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
        if not self._ready:
            self._received(_START_S, "worker_crash", f"a worker did not start in {_START_S} s")
            self._ready = True

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
        code = self._process.wait() if self._process is not None else None
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
            method, arguments, named = connection.recv()
            try:
                reply = ("ok", method(worker, *arguments, **named))
            except MemoryError:
                reply = ("failed", "out of memory")
            except Exception as fault:  # noqa: BLE001 (any exception is the candidate's failure)
                if isinstance(fault, OSError) and fault.errno in DISKS_FAULT:
                    # A full disk is no candidate's fault: it must not be noted as failed.
                    reply = ("machine", disk_line(fault))
                else:
                    text = str(fault).strip() or type(fault).__name__
                    reply = ("failed", text[-2000:])
            connection.send(reply)


def call_all(
    handles: Sequence[WorkerHandle],
    timeout_s: float,
    method: Callable[..., Result],
    arguments: Sequence[tuple[Any, ...]],
) -> list[Result]:
    """Have each of some workers do its own request, all at once; return their replies in order.

    Raises
    ------
    WorkerLostError, RequestFailedError
        The first one, once all have answered.
    """

    def call(handle: WorkerHandle, given: tuple[Any, ...]) -> Result:
        return handle.call(timeout_s, method, *given)

    with ThreadPoolExecutor(len(handles)) as threads:
        return list(threads.map(call, handles, arguments))

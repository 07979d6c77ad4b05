"""The parent's side of one worker process: requests, replies, limits, and its end."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fewtune.errors import MachineError, disk_line
from fewtune.process.child_python import child_python, ending
from fewtune.trial.worker_reply import Built, RequestFailedError, WorkerLostError
from fewtune.util.files import full_disk


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
    """One worker process."""

    target_json: str
    threads: int
    options: WorkerOptions
    # The class that answers. It is made with `settings`; if empty, with target, threads and memory
    # limit.
    kind: str = "fewtune.workers.worker:Worker"
    settings: tuple[Any, ...] = ()
    builds: int = 0
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    _connection: Connection | None = field(default=None, repr=False)
    _ready: bool = False
    lives: int = 0

    def start(self) -> None:
        """Start the process; it gets ready while the caller goes on."""
        here, there = socket.socketpair()
        environment = {"TVM_NUM_THREADS": str(self.threads), "OMP_NUM_THREADS": "1"}
        path = os.pathsep.join(p for p in sys.path if p)
        # The socket is its standard input, which every way of starting Python passes on.
        self._process = subprocess.Popen(
            [child_python(), "-m", "fewtune.workers", self.kind],
            stdin=there.fileno(),
            env={**os.environ, **environment, "PYTHONPATH": path},
        )
        there.close()
        self._connection = Connection(here.detach())
        # A process that dies immediately is noticed when `get_ready` is awaited.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            own = (self.target_json, self.threads, self.options.memory_limit_bytes)
            self._connection.send(self.settings or own)
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
        MachineError
            If the system refused the worker room on a disk, or the like; or if it died on a full
            disk.
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
        if status == "machine":
            raise MachineError(value)
        return value

    def call(self, *request: Any, timeout_s: float) -> Any:
        """Send a request and wait for its reply."""
        self.send(*request)
        return self.receive(timeout_s, "run_timeout")

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

    def _lost(self) -> WorkerLostError | MachineError:
        code = self._process.wait() if self._process is not None else None
        no_room = None
        if code is not None and code < 0:
            no_room = full_disk(Path(tempfile.gettempdir()))
        self.kill()
        if no_room is not None:
            # A full disk is no candidate's fault: it must not be noted as failed.
            return MachineError(disk_line(no_room))
        return WorkerLostError("worker_crash", f"a worker {ending(code)}")


def call_all(
    handles: Sequence[WorkerHandle],
    requests: Sequence[tuple[Any, ...]],
    timeout_s: float,
    timeout_cause: str,
) -> list[Any]:
    """Send each of some workers its own request, then wait for all replies.

    Returns
    -------
    replies : list
        In the order of ``handles``; an exception in place of a missing reply is not raised.
    """
    replies: list[Any] = []
    for handle, request in zip(handles, requests, strict=True):
        try:
            handle.send(*request)
            replies.append(None)
        except WorkerLostError as lost:
            replies.append(lost)
    for place, handle in enumerate(handles):
        if replies[place] is None:
            try:
                replies[place] = handle.receive(timeout_s, timeout_cause)
            except (WorkerLostError, RequestFailedError) as fault:
                replies[place] = fault
    return replies

"""Workers that start in a hundredth of a second: forked from a process that has TVM loaded.

A worker that starts as a new process imports TVM first, which takes 1.5 s of a core, at the start
of every stage and after every candidate that hangs. The fork server is forked before the tuning
process has any thread or device; from then on it forks workers. The tuning process must create it
first (`fewtune.tuning.child_process`): a fork of a process that has run a kernel lacks TVM's
threads and hangs.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
from multiprocessing.connection import Connection

from fewtune.errors import MachineError
from fewtune.process.contexts import without_gc

_MOST_BYTES = 4096


class ForkServer:
    """A process that forks workers; it ends with the process that created it.

    Create it before anything starts a thread.

    Attributes
    ----------
    pid : int
        Of its process.
    control : socket
        Takes requests, one at a time, and gives their answers.
    """

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if self.pid == 0:
            # If it is killed before its answer is read, the connection is reset.
            with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                ours.close()
                _serve(theirs)
            os._exit(0)
        theirs.close()
        self.control = ours

    def spawn(self, descriptor: int, environment: dict[str, str]) -> ForkedWorker:
        """Fork a worker that serves the socket ``descriptor``.

        Raises
        ------
        MachineError
            If the fork server is gone.
        """
        request = json.dumps({"spawn": environment}).encode()
        try:
            socket.send_fds(self.control, [request], [descriptor])
            return ForkedWorker(self, int(self.control.recv(_MOST_BYTES)))
        except (OSError, ValueError):
            raise MachineError(
                "the process that starts build workers has died (out of memory?); run again to "
                "resume"
            ) from None

    def wait(self, pid: int) -> int:
        """Wait for a worker's end; return its exit code, negative for a signal."""
        try:
            self.control.send(json.dumps({"wait": pid}).encode())
            return int(self.control.recv(_MOST_BYTES))
        except (OSError, ValueError):
            # The fork server is gone, and only it can wait for its forks.
            return -signal.SIGKILL


class ForkedWorker:
    """One worker of a fork server, with the part of ``subprocess.Popen`` that a pool needs."""

    def __init__(self, fork_server: ForkServer, pid: int) -> None:
        self.pid = pid
        self._fork_server = fork_server
        self._code: int | None = None

    def kill(self) -> None:
        """Kill it, unless it was waited for: another process may have its number then."""
        if self._code is None:
            # Without its fork server it may have ended already.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Wait for its end."""
        if self._code is None:
            self._code = self._fork_server.wait(self.pid)
        return self._code


def _serve(control: socket.socket) -> None:
    """Fork and reap until the tuning process closes its end or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Loaded once here, not in every worker: TVMScript's parser alone takes half a second.
    with without_gc(for_good=True):
        importlib.import_module("fewtune.workers.worker")
        importlib.import_module("fewtune.machine.peak")
        importlib.import_module("fewtune.workers.model_runner")
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, _MOST_BYTES, 1)
        if not message:
            return
        request = json.loads(message)
        if "wait" in request:
            _, status = os.waitpid(request["wait"], 0)
            control.send(str(os.waitstatus_to_exitcode(status)).encode())
            continue
        pid = os.fork()
        if pid == 0:
            control.close()
            os.environ.update(request["spawn"])
            _become_worker(descriptors[0])
        os.close(descriptors[0])
        control.send(str(pid).encode())


def _become_worker(descriptor: int) -> None:
    from fewtune.workers import worker

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    code = 1
    try:
        worker.silence()
        worker.serve(Connection(descriptor))
        code = 0
    finally:
        # Exit handlers of the tuning process must not run here.
        os._exit(code)

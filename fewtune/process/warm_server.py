"""The warm process itself: it imports modules, forks on request, and passes signals on.

`fewtune.process.warm` starts it. It runs nothing but imports: a fork of a process that has run a
kernel, or started a thread, hangs.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import io
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import psutil

from fewtune.process.child_python import TVM, end_with_parent

_PATIENCE_S = 3.0


@dataclass
class _Child:
    """A forked process, the connection of its caller, and when it has to be killed."""

    pid: int
    connection: socket.socket
    watched: int = field(default=-1)
    kill_at: float | None = None

    def send(self, number: int) -> None:
        """Send a signal to the process and to what it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)


class _Server:
    """Forks on request, until the run closes its end."""

    def __init__(
        self, listener: socket.socket, control: socket.socket, needs: dict[str, list[str]]
    ) -> None:
        self._listener, self._control, self._needs = listener, control, needs
        self._children: dict[int, _Child] = {}
        self._ready = selectors.DefaultSelector()
        self._ready.register(listener, selectors.EVENT_READ)
        self._ready.register(control, selectors.EVENT_READ)

    def serve(self, modules: list[str]) -> None:
        """Answer requests; load ``modules`` while there is none."""
        while True:
            events = self._ready.select(0 if modules else 0.2 if self._children else None)
            for key, _ in events:
                if key.fileobj is self._control:
                    return
                if key.fileobj is self._listener:
                    self._fork()
                elif key.data.watched == key.fd:
                    self._ended(key.data)
                else:
                    self._asked(key.data)
            if modules and not events:
                self._load(modules.pop(0))
            for child in list(self._children.values()):
                if child.kill_at is not None and time.monotonic() > child.kill_at:
                    child.send(signal.SIGKILL)

    def close(self) -> None:
        """End all forks: their results are not needed any more."""
        for child in list(self._children.values()):
            child.send(signal.SIGTERM)
        deadline = time.monotonic() + 1
        while self._children and time.monotonic() < deadline:
            time.sleep(0.02)
            for pid in list(self._children):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    self._children.pop(pid).send(signal.SIGKILL)
        # Whatever they started is in this session, and so is this process.
        for pid in psutil.pids():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if pid != os.getpid() and os.getsid(pid) == os.getsid(0):
                    os.kill(pid, signal.SIGKILL)

    def _fork(self) -> None:
        connection, _ = self._listener.accept()
        connection.settimeout(5)
        try:
            request, descriptors = _received(connection)
        except (OSError, ValueError):
            connection.close()
            return
        module, *rest = request["arguments"]
        self._load(module)
        if module == "fewtune.process.child":
            # The function, and the class that it is told to use.
            for name in rest[:2]:
                self._load(name.partition(":")[0])
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            self._listener.close()
            self._control.close()
            connection.close()
            _become(request, descriptors)
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        for descriptor in descriptors:
            os.close(descriptor)
        child = _Child(pid, connection, os.pidfd_open(pid))
        self._children[pid] = child
        self._ready.register(child.watched, selectors.EVENT_READ, child)
        self._ready.register(connection, selectors.EVENT_READ, child)
        # The caller may have been killed: `_asked` notices that.
        with contextlib.suppress(OSError):
            connection.sendall(b"f")

    def _load(self, module: str) -> None:
        """Import what a module needs; the child that runs it reports errors."""
        for name in self._needs.get(module, [module]):
            with contextlib.suppress(Exception):
                load(name)

    def _asked(self, child: _Child) -> None:
        """Handle a signal to be passed on, or the end of the child's caller."""
        if child.pid not in self._children:
            return  # it ended in the same moment
        try:
            number = child.connection.recv(1)
        except OSError:
            number = b""
        if number:
            child.send(number[0])
            return
        self._ready.unregister(child.connection)
        child.send(signal.SIGTERM)
        child.kill_at = time.monotonic() + _PATIENCE_S

    def _ended(self, child: _Child) -> None:
        _, status = os.waitpid(child.pid, 0)
        del self._children[child.pid]
        self._ready.unregister(child.watched)
        os.close(child.watched)
        with contextlib.suppress(KeyError, ValueError):
            self._ready.unregister(child.connection)
        code = os.waitstatus_to_exitcode(status)
        with contextlib.suppress(OSError):
            child.connection.sendall(code.to_bytes(4, "big", signed=True))
        child.connection.close()


def load(name: str) -> None:
    """Import a module; for ``MODULE:FUNCTION``, also call the function."""
    module, _, function = name.partition(":")
    loaded = importlib.import_module(module)
    if function:
        getattr(loaded, function)()


def _received(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    head, descriptors, _, _ = socket.recv_fds(connection, 8, 3)
    if len(head) < 8 or len(descriptors) != 3:
        raise ValueError("no request")
    size, content = int.from_bytes(head, "big"), b""
    while len(content) < size:
        chunk = connection.recv(size - len(content))
        if not chunk:
            raise ValueError("half a request")
        content += chunk
    return json.loads(content), descriptors


def _become(request: dict[str, Any], descriptors: list[int]) -> None:
    """Become the requested process; never returns."""
    # It never outlives the warm process, which never outlives the run.
    end_with_parent()
    code = 1
    try:
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        os.environ.clear()
        os.environ.update(request["environment"])
        if TVM in sys.modules:
            # As it does when it is loaded.
            sys.modules[TVM].set_default_threads()
        os.chdir(request["folder"])
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(line_buffering=True)
        _limit_blas()
        # Nothing that is loaded becomes garbage.
        gc.freeze()
        gc.enable()
        code = _run(request["arguments"])
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        if code < 0:
            # As the interpreter itself would, without its traceback.
            signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        os._exit(code)


def _run(arguments: list[str]) -> int:
    module = arguments[0]
    sys.argv = [module, *arguments[1:]]
    # It runs as the main module; what it imports stays loaded.
    if not hasattr(sys.modules.get(module), "__path__"):
        sys.modules.pop(module, None)
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        return 0
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return -signal.SIGINT
    except BaseException:  # noqa: BLE001 (as the interpreter itself would)
        traceback.print_exc()
        return 1
    finally:
        atexit._run_exitfuncs()


def _limit_blas() -> None:
    """Set NumPy's threads: its library read their number when the warm process loaded it."""
    threads = os.environ.get("OPENBLAS_NUM_THREADS", "")
    if threads.isdecimal():
        import threadpoolctl  # type: ignore[import-untyped]

        threadpoolctl.threadpool_limits(int(threads), user_api="blas")


def _main(listening: int, control: int, folder: Path, wanted: dict[str, Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    listener, ours = socket.socket(fileno=listening), socket.socket(fileno=control)
    server, modules = _Server(listener, ours, wanted["needs"]), list(wanted["modules"])
    gc.disable()

    def end(*_: object) -> NoReturn:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        server.close()
        shutil.rmtree(folder, ignore_errors=True)
        # Nothing is left to clean up, and unloading all modules takes half a second.
        os._exit(0)

    # A run that ends sends this signal, also during an import; a killed run closes its end.
    signal.signal(signal.SIGHUP, end)
    try:
        server.serve(modules)
    finally:
        end()


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), json.loads(sys.argv[4]))

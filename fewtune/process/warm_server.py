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
import select
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import psutil

from fewtune.process.child_python import TVM, end_with_parent

_PATIENCE_S = 3.0


def _serve(listener: socket.socket, control: socket.socket, modules: list[str]) -> None:
    """Answer requests until the run closes its end; load ``modules`` while there is none."""
    while True:
        ready, _, _ = select.select([listener, control], [], [], 0 if modules else None)
        if control in ready:
            return
        if listener in ready:
            _fork(listener.accept()[0], (listener, control))
        elif modules:
            _load(modules.pop(0))


def _fork(connection: socket.socket, others: Sequence[socket.socket]) -> None:
    """Start what a caller asks for, and a process that waits for it."""
    connection.settimeout(5)
    with connection, contextlib.suppress(OSError, ValueError):
        request, descriptors = _received(connection)
        module, *rest = request["arguments"]
        _load(module)
        if module == "fewtune.process.child":
            # The function, and the class that it is told to use.
            for name in rest[:2]:
                _load(name.partition(":")[0])
        if os.fork() == 0:
            try:
                for each in others:
                    each.close()
                _attend(connection, request, descriptors)
            finally:
                os._exit(1)
        for descriptor in descriptors:
            os.close(descriptor)


def _attend(connection: socket.socket, request: dict[str, Any], descriptors: list[int]) -> None:
    """Fork the process, pass its caller's signals on, and answer its exit code."""
    end_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    pid = os.fork()
    if pid == 0:
        # Signals go to the process and to what it has started.
        os.setpgid(0, 0)
        connection.close()
        _become(request, descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    ended: Any = os.pidfd_open(pid)
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)
    # A caller that is gone has closed its end.
    with contextlib.suppress(OSError):
        connection.sendall(b"f")
        while ended not in select.select([ended, connection], [], [])[0]:
            if not (number := connection.recv(1)):
                break
            os.killpg(pid, number[0])
    with contextlib.suppress(ProcessLookupError):
        if not select.select([ended], [], [], 0)[0]:
            os.killpg(pid, signal.SIGTERM)
            if not select.select([ended], [], [], _PATIENCE_S)[0]:
                os.killpg(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(OSError):
        connection.sendall(code.to_bytes(4, "big", signed=True))


def _end_forks() -> None:
    """End what was forked, and what that has started: they are in this session."""
    for number, patience_s in ((signal.SIGTERM, 1.0), (signal.SIGKILL, 0.0)):
        until_s = time.monotonic() + patience_s
        for pid in (others := _others()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        while others and time.monotonic() < until_s:
            time.sleep(0.02)
            others = _others()


def _others() -> list[int]:
    """The other processes of this session."""
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if pid != os.getpid() and os.getsid(pid) == os.getsid(0):
                found.append(pid)
    return found


def _load(name: str) -> None:
    """Import a module; for ``MODULE:FUNCTION``, also call the function.

    The child that needs it reports errors.
    """
    module, _, function = name.partition(":")
    with contextlib.suppress(Exception):
        loaded = importlib.import_module(module)
        if function:
            getattr(loaded, function)()


def _received(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    head, descriptors, _, _ = socket.recv_fds(connection, 8, 3)
    with connection.makefile("rb") as stream:
        return json.loads(stream.read(int.from_bytes(head, "big"))), descriptors


def _become(request: dict[str, Any], descriptors: list[int]) -> None:
    """Become the requested process; never returns."""
    # It never outlives what attends it, which never outlives the warm process and the run.
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


def _main(listening: int, control: int, folder: Path, modules: list[str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # What was forked and has ended is no zombie.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener, ours = socket.socket(fileno=listening), socket.socket(fileno=control)
    gc.disable()

    def end(*_: object) -> NoReturn:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        _end_forks()
        shutil.rmtree(folder, ignore_errors=True)
        # Nothing is left to clean up, and unloading all modules takes half a second.
        os._exit(0)

    # A run that ends sends this signal, also during an import; a killed run closes its end.
    signal.signal(signal.SIGHUP, end)
    try:
        _serve(listener, ours, modules)
    finally:
        end()


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])

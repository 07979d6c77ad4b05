"""Child processes: which Python starts them, and how they end.

The warm process starts them, if there is one.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path

from fewtune.errors import Terminated

# Names a program that takes Python's ``-m MODULE ...`` and behaves like Python.
CHILD_PYTHON = "FEWTUNE_PYTHON"
# Show what a child writes to standard error, such as TVM's own trace of a crash.
SHOW_STDERR = "FEWTUNE_WORKER_STDERR"
# The module that loads TVM.
TVM = "fewtune.runtime.tvm"
_PR_SET_PDEATHSIG = 1
# A terminal sends the first to all processes of a command; the others are sent to one process.
_FROM_OUTSIDE = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})


def child_python() -> str:
    """The program to run modules with, ``sys.executable`` unless the environment names another."""
    return shutil.which(os.environ.get(CHILD_PYTHON, "")) or sys.executable


def started(
    function: str,
    *arguments: str | Path,
    shows_output: bool = False,
    is_fresh: bool = False,
    environment: Mapping[str, str] | None = None,
) -> tuple[subprocess.Popen[bytes], Connection]:
    """Start a process that calls a function; its standard input is a socket to this one.

    Parameters
    ----------
    function : str
        ``module:function``.
    arguments : str or Path
        Texts that it is given. The warm process loads the modules of those like ``module:class``.
    shows_output : bool
        Whether it writes to this process's streams.
    is_fresh : bool
        Start Python even if there is a warm process, all of whose forks share their addresses.
    environment : mapping, optional
        Variables beside this process's own.
    """
    hidden = None if shows_output else subprocess.DEVNULL
    here, there = socket.socketpair()
    with there:
        python = sys.executable if is_fresh else child_python()
        process = subprocess.Popen(
            [python, "-m", "fewtune.process.child", function, *arguments],
            # Every way of starting Python passes it on.
            stdin=there.fileno(),
            stdout=hidden,
            stderr=None if os.environ.get(SHOW_STDERR) else hidden,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                **(environment or {}),
            },
        )
    return process, Connection(here.detach())


def parents_connection() -> Connection:
    """The other end of `started`'s socket."""
    return Connection(os.dup(0))


def is_child_of(parent: int) -> bool:
    """Whether ``parent`` started this process.

    A process that the warm process forked counts as started: it ends with its caller.
    """
    return CHILD_PYTHON in os.environ or os.getppid() == parent


def end_with_parent() -> None:
    """Let the kernel kill this process when its parent ends, for any reason."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def end_by_interrupts() -> None:
    """Let an interrupt end this process immediately, without a traceback.

    This is for a process that another one waits for: that one reports the interruption.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def end_by_interrupts_while_loading(package: str) -> None:
    """Do so at the start of ``python -m PACKAGE.MODULE``, before the module is imported.

    Importing TVM takes seconds, during which a process has no handler of its own yet. A user's
    program that imports the package keeps its handlers.
    """
    # Until Python has found the module that is to run, it is called "-m".
    if sys.argv[:1] == ["-m"]:
        program = sys.orig_argv[sys.orig_argv.index("-m") + 1]
        if program.startswith(f"{package}."):
            end_by_interrupts()


def interrupt_of(exit_code: int | None) -> KeyboardInterrupt | None:
    """The interrupt that ended a process from outside; None if it ended by itself."""
    if exit_code is None or -exit_code not in _FROM_OUTSIDE:
        return None
    return Terminated() if exit_code == -signal.SIGTERM else KeyboardInterrupt()


def ending(exit_code: int | None) -> str:
    """How a process ended, as a predicate: the name of the signal that killed it, or its code."""
    if exit_code is None or exit_code >= 0:
        return f"ended with exit code {exit_code}"
    if exit_code == -signal.SIGKILL:
        return "was killed by signal 9 (SIGKILL), perhaps for want of memory"
    return f"was ended by signal {-exit_code} ({signal.Signals(-exit_code).name})"

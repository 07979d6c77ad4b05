"""Child processes: which Python starts them, and how they end.

The warm process starts them, if there is one.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys

# Names a program that takes Python's ``-m MODULE ...`` and behaves like Python.
CHILD_PYTHON = "FEWTUNE_PYTHON"
# Show what a child writes to standard error, such as TVM's own trace of a crash.
SHOW_STDERR = "FEWTUNE_WORKER_STDERR"
# Modules that such a program should have loaded: TVM, and what child processes import.
TVM = "fewtune.runtime.tvm"
CHILD_MODULES = (
    # Importing a model loads it to slim the graph.
    "onnxslim",
    # Every process with a target of this machine's CPU parses these.
    "fewtune.runtime.tvm:register_own_intrinsics",
    "fewtune.tuning.child_process",
    "fewtune.workers.worker",
    "fewtune.workers.model_runner",
    "fewtune.tuning.session",
    "fewtune.sharing.session",
    "fewtune.machine.peak",
)
_PR_SET_PDEATHSIG = 1
# A terminal sends the first to all processes of a command; the others are sent to one process.
_FROM_OUTSIDE = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})


def child_python() -> str:
    """The program to run modules with, ``sys.executable`` unless the environment names another."""
    return os.environ.get(CHILD_PYTHON) or sys.executable


def load(name: str) -> None:
    """Import a module; for ``MODULE:FUNCTION``, also call the function."""
    module, _, function = name.partition(":")
    loaded = importlib.import_module(module)
    if function:
        getattr(loaded, function)()


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


def was_interrupted(exit_code: int | None) -> bool:
    """Whether a process was ended by a signal from outside, not by its own fault."""
    return exit_code is not None and -exit_code in _FROM_OUTSIDE

"""The processes that work is done in: which Python starts them, and how they end.

A warm process starts them, where one is kept.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys

# A program that takes Python's ``-m MODULE ...`` and behaves as Python does.
CHILD_PYTHON = "FEWTUNE_PYTHON"
# Show what a child writes to standard error, such as TVM's own trace of a crash.
SHOW_STDERR = "FEWTUNE_WORKER_STDERR"
# What such a program does well to have loaded: TVM, and what child processes import.
TVM = "fewtune.runtime.tvm"
CHILD_MODULES = (
    # An import loads it when it slims a model.
    "onnxslim",
    # What a target of this machine's CPU has every process parse.
    "fewtune.runtime.intrinsics:register_own",
    "fewtune.tuning.child_process",
    "fewtune.workers.worker",
    "fewtune.workers.model_runner",
    "fewtune.tuning.session",
    "fewtune.sharing.session",
    "fewtune.machine.peak",
)
_PR_SET_PDEATHSIG = 1
# A terminal sends the first to all processes of a command; the others end what they are sent to.
_FROM_OUTSIDE = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})


def child_python() -> str:
    """The program to run modules with, ``sys.executable`` unless the environment names another."""
    return os.environ.get(CHILD_PYTHON) or sys.executable


def load(name: str) -> None:
    """Import a module; of ``MODULE:FUNCTION``, call the function, too."""
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
    """Have the kernel kill this process when its parent ends, however that ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def end_by_interrupts() -> None:
    """Let an interrupt end this process immediately, without a traceback.

    This is for a process that another one waits for: that one reports the interruption.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def end_by_interrupts_while_loading() -> None:
    """Do so where this is the start of ``python -m PACKAGE.MODULE``, before that is imported.

    Importing TVM takes seconds, for which a process has no handler of its own yet.
    """
    # Until Python has found the module that is to run.
    if sys.argv[:1] == ["-m"]:
        end_by_interrupts()


def was_interrupted(exit_code: int | None) -> bool:
    """Whether a process was ended by a signal from outside, and through no fault of its own."""
    return exit_code is not None and -exit_code in _FROM_OUTSIDE

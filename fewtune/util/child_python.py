"""Which Python starts the processes that work is done in: a warm one, where somebody keeps one."""

from __future__ import annotations

import importlib
import os
import sys

# A program that takes Python's ``-m MODULE ...`` and behaves as Python does.
CHILD_PYTHON = "FEWTUNE_PYTHON"
# What such a program does well to have loaded: TVM, and what child processes import.
TVM = "fewtune.runtime.tvm"
CHILD_MODULES = (
    # What a target of this machine's CPU has every process parse.
    "fewtune.runtime.intrinsics:register_own",
    "fewtune.tuning.child_process",
    "fewtune.workers.worker",
    "fewtune.workers.model_runner",
    "fewtune.tuning.session",
    "fewtune.sharing.session",
    "fewtune.machine.peak",
)


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
    """Whether ``parent`` started this process, as far as its parent can tell.

    A process that was forked by another one's order ends with it, whatever its parent is.
    """
    return CHILD_PYTHON in os.environ or os.getppid() == parent

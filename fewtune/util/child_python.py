"""Which Python starts the processes that work is done in: a warm one, where somebody keeps one."""

from __future__ import annotations

import os
import platform
import sys

# A program that takes Python's ``-m MODULE ...`` and behaves as Python does.
CHILD_PYTHON = "FEWTUNE_PYTHON"
# What such a program does well to have loaded: TVM, and what child processes import.
TVM = "fewtune.runtime.tvm"
_INTRINSICS = "tvm.s_tir.tensor_intrin."
CHILD_MODULES = (
    # What a target of this machine's CPU has every process parse, for a quarter of a second.
    _INTRINSICS + ("x86" if platform.machine() == "x86_64" else "arm_cpu"),
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


def is_child_of(parent: int) -> bool:
    """Whether ``parent`` started this process, as far as its parent can tell.

    A process that was forked by another one's order ends with it, whatever its parent is.
    """
    return CHILD_PYTHON in os.environ or os.getppid() == parent

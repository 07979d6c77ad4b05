"""Registers the tensor intrinsics of a target, in a fifth of the time that importing them takes.

For each function that it parses, ``tvm.script`` looks up the source of every frame of the stack, to
see whether the function is in a class. That takes 0.2 s in a process with TVM alone, 0.7 s in one
that has also loaded scikit-learn. No intrinsic is in a class, nor is any kernel that this software
writes as TVMScript (`frames_without_source`).
"""

from __future__ import annotations

import importlib
import inspect
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager

PACKAGE = "tvm.s_tir.tensor_intrin"


def register_family(family: str) -> None:
    """Register one family of intrinsics: ``x86``, ``arm_cpu``, ``cuda``, ``rocm``, ``metal``."""
    name = f"{PACKAGE}.{family}"
    if name not in sys.modules:
        with frames_without_source():
            importlib.import_module(name)


def register_own() -> None:
    """Register those that a target of this machine's CPU needs."""
    # Puts the light package in the place of TVM's, which would parse them all.
    importlib.import_module("fewtune.runtime.tvm")
    register_family("x86" if platform.machine() == "x86_64" else "arm_cpu")


@contextmanager
def frames_without_source() -> Iterator[None]:
    """Have `inspect.stack` give frames as they are, their source lines not looked up.

    TVMScript in the block, or in a function that this decorates, is parsed sooner; none of it may
    be in a class.
    """

    def stack(context: int = 1) -> list[inspect.FrameInfo]:
        del context
        found, frame = [], sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            info = inspect.FrameInfo(
                frame, code.co_filename, frame.f_lineno, code.co_name, None, None
            )
            found.append(info)
            frame = frame.f_back  # type: ignore[assignment]
        return found

    theirs, inspect.stack = inspect.stack, stack
    try:
        yield
    finally:
        inspect.stack = theirs

"""TVM, started light: import this before any other module imports TVM.

Environment variables that TVM reads once, when it loads, are set here. Where there is no NVIDIA
GPU, what TVM has for other devices than CPUs waits until a target asks for it.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from fewtune.tvm_compat.cuda_toolkit import use_own_gpu
from fewtune.util.nvidia_driver import has_nvidia_driver

THREADS = "TVM_NUM_THREADS"
# Holds the default that was set here, so that child processes can tell it from a user's value.
OWN_THREADS = "FEWTUNE_DEFAULT_THREADS"
# TVM's own variable: "0" for none of its back ends for other devices.
_AUTOLOAD = "TVM_DEVICE_BACKEND_AUTOLOAD"


def set_default_threads() -> None:
    """Let TVM use all usable cores, unless the user set a number: on x86 it takes half of them.

    Test: tests/tvm_compat/test_start.py::test_cores_are_the_default_and_back_ends_wait
    """
    if THREADS not in os.environ:
        os.environ[THREADS] = os.environ[OWN_THREADS] = str(len(os.sched_getaffinity(0)))


@contextmanager
def backends_later() -> Iterator[None]:
    """Import TVM in the block without its back ends: in 0.40 s of a core instead of 0.65.

    They ask for 111 operators that TVM lacks. Each answer is an error, for which TVM looks up the
    names of all functions that called it. So is one for a class of its library of sorts and random
    numbers, which is loaded first here.

    Test: tests/tvm_compat/test_start.py::test_cores_are_the_default_and_back_ends_wait
    """
    if _AUTOLOAD in os.environ or "tvm" in sys.modules or has_nvidia_driver():
        yield
        return
    from tvm_ffi.libinfo import load_lib_ctypes

    found = importlib.util.find_spec("tvm")
    folders = [] if found is None else (found.submodule_search_locations or [])
    places = [Path(folder) / "lib" for folder in folders]
    try:
        for library, mode in (("tvm_runtime", "RTLD_GLOBAL"), ("tvm_runtime_extra", "RTLD_LOCAL")):
            load_lib_ctypes("tvm", library, mode, extra_lib_paths=places)
    except (OSError, RuntimeError):
        yield
        return
    os.environ[_AUTOLOAD] = "0"
    try:
        yield
    finally:
        del os.environ[_AUTOLOAD]


set_default_threads()
use_own_gpu()
with backends_later():
    import tvm


@cache
def load_backends() -> None:
    """Load what TVM has for other devices than CPUs, where its import left that out.

    TVM has no public way to load them later.

    Test: tests/tvm_compat/test_start.py::test_cores_are_the_default_and_back_ends_wait
    """
    from tvm.backend import _autoload_backends, loader

    if not loader.is_loaded("cuda"):
        _autoload_backends._AUTO_LOAD_DONE = False
        _autoload_backends._autoload_backends()


__all__ = ["OWN_THREADS", "THREADS", "load_backends", "set_default_threads", "tvm"]

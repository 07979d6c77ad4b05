"""TVM, started light: only the tensor intrinsics that fp32 code on the target needs.

``tvm.s_tir.tensor_intrin`` parses the TVMScript of every intrinsic for every target when it is
imported (14.5 s on a 2-core x86-64 machine, 11 of them for CUDA), and ``TuneContext`` imports it.
This module puts a package of the same name in its place whose submodules are the real ones, and
imports only the submodules asked for. Where there is no NVIDIA GPU, what TVM has for other devices
than CPUs waits until a target asks for it. Import TVM through this module, everywhere::

    from fewtune.runtime.tvm import ms, tvm

Environment variables that TVM reads once, when it loads, are set here as well, and exponentials and
the like get vectors (`fewtune.runtime.vector_math`).
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fewtune.runtime.cuda_toolkit import use_own_gpu
from fewtune.util.nvidia_driver import has_nvidia_driver

THREADS = "TVM_NUM_THREADS"
# Holds the default that was set here, so that child processes can tell it from a user's value.
OWN_THREADS = "FEWTUNE_DEFAULT_THREADS"


def usable_cores() -> int:
    """Cores that this process may run on (the affinity mask, not the machine's count)."""
    return len(os.sched_getaffinity(0))


def set_default_threads() -> None:
    """Let TVM use all usable cores, unless the user has set another number."""
    if THREADS not in os.environ:
        os.environ[THREADS] = os.environ[OWN_THREADS] = str(usable_cores())


def given_threads() -> str | None:
    """The user's value of ``TVM_NUM_THREADS``; None if it is this software's default."""
    given = os.environ.get(THREADS)
    return None if given == os.environ.get(OWN_THREADS) else given


# TVM's own variable: "0" for none of its back ends for other devices.
_AUTOLOAD = "TVM_DEVICE_BACKEND_AUTOLOAD"


@contextmanager
def _backends_later() -> Iterator[None]:
    """Import TVM in the block without its back ends: in 0.40 s of a core instead of 0.65.

    They ask for 111 operators that TVM lacks. Each answer is an error, for which TVM looks up the
    names of all functions that called it. So is one for a class of its library of sorts and random
    numbers, which is loaded first here.
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


# Unless this is set, TVM's thread pool takes half of the logical cores on x86.
set_default_threads()
use_own_gpu()

with _backends_later():
    import tvm
import tvm.s_tir  # noqa: E402
from tvm_ffi.serialization import from_json_graph_str  # noqa: E402

from fewtune.runtime import intrinsics  # noqa: E402


def _stand_in_for_intrinsics() -> None:
    if intrinsics.PACKAGE in sys.modules:
        return
    package = types.ModuleType(intrinsics.PACKAGE, "Submodules are imported one by one, as needed.")
    package.__path__ = [str(Path(tvm.s_tir.__file__).parent / "tensor_intrin")]
    sys.modules[intrinsics.PACKAGE] = package
    tvm.s_tir.tensor_intrin = package


_stand_in_for_intrinsics()

from tvm import relax, te  # noqa: E402
from tvm.s_tir import meta_schedule as ms  # noqa: E402

from fewtune.runtime import dot_products, special_values, vector_math  # noqa: E402

vector_math.register()
dot_products.register()
special_values.register()


# Kinds of targets that need none of the back ends for other devices.
HOST_KINDS = ("llvm", "c")


@cache
def load_backends() -> None:
    """Load what TVM has for other devices than CPUs, where its import left that out."""
    from tvm.backend import _autoload_backends, loader

    if not loader.is_loaded("cuda"):
        # TVM has no public way to load them later.
        _autoload_backends._AUTO_LOAD_DONE = False
        _autoload_backends._autoload_backends()


def register_intrinsics(target: tvm.target.Target) -> None:
    """Register the tensor intrinsics that the schedule rules of ``target`` name.

    The rules look an intrinsic up by name when they are made, so the x86 ones must be there even
    where no task is quantised.
    """
    kind = str(target.kind.name)
    if kind not in HOST_KINDS:
        # Intrinsics of other devices are written in the words of their back ends.
        load_backends()
    family = {"cuda": "cuda", "rocm": "rocm", "metal": "metal"}.get(kind)
    if kind == "llvm":
        triple = str(target.attrs.get("mtriple", "")) or "x86_64"
        family = "arm_cpu" if triple.startswith(("aarch64", "arm")) else "x86"
    if family is not None:
        intrinsics.register_family(family)


def flat(tensor: Any) -> Any:
    """A tensor's elements along one axis, not copied."""
    elements = math.prod(int(extent) for extent in tensor.shape)
    return tensor._create_view((elements,))


def fill_repeating(tensor: Any, numbers: np.ndarray) -> None:
    """Fill a float32 tensor in the host's memory with some numbers, over and over."""
    elements = np.from_dlpack(flat(tensor))
    whole = len(elements) // len(numbers) * len(numbers)
    elements[:whole].reshape(-1, len(numbers))[:] = numbers
    elements[whole:] = numbers[: len(elements) - whole]


def set_threads(threads: int) -> None:
    """Let TVM's pool in this process run so many threads."""
    tvm.get_global_func("runtime.config_threadpool")(1, threads)


def module_of(text: str) -> tvm.IRModule:
    """A module that this very version of TVM wrote as JSON, moments ago.

    ``tvm.ir.load_json`` goes through the text first for what older versions wrote, which takes 3.5
    of its 4 ms for a scheduled kernel.
    """
    return from_json_graph_str(text)


def read_module(text: str) -> tvm.IRModule:
    """A module that some version of TVM wrote as JSON.

    What this version wrote is not searched for what older ones did (`module_of`): of a large model
    that takes seconds.
    """
    graph = json.loads(text)
    if not isinstance(graph, dict):
        raise ValueError("no module in TVM's JSON")
    if graph.get("metadata") == {"tvm_version": tvm.__version__}:
        return module_of(text)
    return tvm.ir.load_json(text)


def compiled(module: tvm.IRModule, target: tvm.target.Target) -> Any:
    """Compile kernels, each with the functions that they are marked for (`vector_math`)."""
    # For CUDA, TVM asks the target at hand which architecture to compile for.
    with target, vector_math.as_marked(module):
        return tvm.driver.build(module, target=target)


def build(module: tvm.IRModule, target: tvm.target.Target) -> Any:
    """Compile kernels into a module whose functions can be called in this process."""
    built = compiled(module, target)
    return getattr(built, "jit", lambda: built)()


def has_feature(target: tvm.target.Target, feature: str) -> bool:
    """Whether LLVM knows that a CPU target has a feature; False where that is unknown."""
    known = tvm.get_global_func("target.target_has_feature", allow_missing=True)
    if known is None:
        return False
    try:
        return bool(known(feature, target))
    except Exception:  # noqa: BLE001 (no LLVM for this target: the safe answer is no)
        return False


__all__ = [
    "HOST_KINDS",
    "build",
    "compiled",
    "fill_repeating",
    "given_threads",
    "has_feature",
    "load_backends",
    "ms",
    "read_module",
    "register_intrinsics",
    "relax",
    "set_default_threads",
    "set_threads",
    "te",
    "tvm",
    "usable_cores",
]

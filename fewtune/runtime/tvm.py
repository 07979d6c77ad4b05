"""TVM, started light: only the tensor intrinsics that fp32 code on the target needs.

Import TVM through this module, everywhere::

    from fewtune.runtime.tvm import ms, tvm

It also registers the operators, lowerings and passes that kernels on a CPU are compiled with.
"""

from __future__ import annotations

import json
import os
import platform
from typing import Any

import numpy as np
from tvm_ffi.serialization import from_json_graph_str

from fewtune.runtime import dot_products, vector_math
from fewtune.runtime.special_values import PIPELINE
from fewtune.tvm_compat.intrinsics import light_package, register_family
from fewtune.tvm_compat.start import OWN_THREADS, THREADS, load_backends, set_default_threads, tvm
from fewtune.tvm_compat.values import flat

light_package()

from tvm import relax, te  # noqa: E402
from tvm.s_tir import meta_schedule as ms  # noqa: E402

vector_math.register()
dot_products.register()

# Kinds of targets that need none of the back ends for other devices.
HOST_KINDS = ("llvm", "c")


def usable_cores() -> int:
    """Cores that this process may run on (the affinity mask, not the machine's count)."""
    return len(os.sched_getaffinity(0))


def given_threads() -> str | None:
    """The user's value of ``TVM_NUM_THREADS``; None if it is this software's default."""
    given = os.environ.get(THREADS)
    return None if given == os.environ.get(OWN_THREADS) else given


def register_own_intrinsics() -> None:
    """Register the tensor intrinsics that a target of this machine's CPU needs."""
    register_family("x86" if platform.machine() == "x86_64" else "arm_cpu")


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
        register_family(family)


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
        return tvm.driver.build(module, target=target, pipeline=PIPELINE)


def build(module: tvm.IRModule, target: tvm.target.Target) -> Any:
    """Compile kernels into a module whose functions can be called in this process."""
    built = compiled(module, target)
    return getattr(built, "jit", lambda: built)()


def without_checks() -> tvm.transform.PassContext:
    """A context without compiled checks of arguments, which are a third of the code for LLVM."""
    return tvm.transform.PassContext(opt_level=3, config={"tirx.disable_assert": True})


def has_feature(target: tvm.target.Target, feature: str) -> bool:
    """Whether LLVM knows that a CPU target has a feature; False where that is unknown."""
    try:
        return bool(tvm.get_global_func("target.target_has_feature")(feature, target))
    except Exception:  # noqa: BLE001 (no LLVM for this target: the safe answer is no)
        return False


# What others take from here beside what is defined here.
__all__ = ["THREADS", "flat", "load_backends", "ms", "relax", "set_default_threads", "te", "tvm"]

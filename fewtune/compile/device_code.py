"""Compiles a library for a GPU that this machine may lack; it is not run.

The model's import is checked on this machine's CPU. Kernels have dlight's default schedules. The
library is searched for machine code of the architecture: if TVM cannot compile, it leaves source
text in the library and reports nothing.

This module does not load TVM, because NVIDIA's compiler has to be set up before.
"""

from __future__ import annotations

import json
import re
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from fewtune.errors import InputError, MachineError
from fewtune.runtime.target import GPU_LIMITS
from fewtune.tvm_compat.cuda_toolkit import make_ready

# Device code is an ELF file inside the library. Of its header: the magic number, the machine, which
# is 190 for CUDA, and the flags.
_DEVICE_CODE = re.compile(rb"\x7fELF.{14}\xbe\0.{28}(.{4})", re.DOTALL)
LIBRARY = "model.so"


class DeviceLibrary(NamedTuple):
    """A library that was compiled for a GPU.

    Attributes
    ----------
    path : Path
    architectures : list of int
        Of its device code, such as 90.
    kernels, unscheduled : int
        Numbers of distinct kernels, and of those to which no rule applies.
    relative_error : float
        Of the imported model on this machine's CPU, against onnxruntime.
    """

    path: Path
    architectures: list[int]
    kernels: int
    unscheduled: int
    relative_error: float


def gpu_target(arch: str) -> str:
    """The CUDA target of an architecture such as ``sm_90``, as JSON.

    Raises
    ------
    InputError
        If it is not an architecture from ``sm_70`` on.
    """
    digits = arch.removeprefix("sm_").rstrip("af")
    if not (arch.startswith("sm_") and digits.isdecimal() and int(digits) >= 70):
        raise InputError(
            f"architecture {arch!r} is not supported: give sm_70 or newer, such as sm_90"
        )
    return json.dumps({"kind": "cuda", "arch": arch, **GPU_LIMITS})


def device_architectures(library: Path) -> list[int]:
    """The architectures for which a library has CUDA machine code, such as 90.

    The file is read, not loaded.
    """
    return sorted({flags[1] for flags in _DEVICE_CODE.findall(library.read_bytes())})


def compile_for_gpu(name: str, models: Path, arch: str, directory: Path) -> DeviceLibrary:
    """Compile a registered model for a GPU, in a child process.

    Parameters
    ----------
    name : str
        A registered model.
    models : Path
        Folder of registered models.
    arch : str
        Such as ``sm_90``.
    directory : Path
        Gets ``model.so``.

    Raises
    ------
    InputError
        If the model or the architecture cannot be used.
    MachineError
        If NVIDIA's compiler is missing, or TVM made no machine code.
    VerificationError
        If the import's outputs differ from onnxruntime's.
    """
    target = gpu_target(arch)
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        made = pool.submit(_compile, name, models, target, directory).result()
    library = directory / LIBRARY
    found = device_architectures(library)
    wanted = int(arch.removeprefix("sm_").rstrip("af"))
    if wanted not in found:
        library.unlink()
        raise MachineError(
            f"TVM made no machine code for {arch}, only source text that cannot be loaded: check "
            "that NVIDIA's compiler works (pip install 'fewtune[cuda]')"
        )
    return made._replace(architectures=found)


def _compile(name: str, models: Path, target_json: str, directory: Path) -> DeviceLibrary:
    """Import, schedule by default, build and export, in a process without TVM."""
    with tempfile.TemporaryDirectory(prefix="fewtune-") as scratch:
        toolkit, imported = Path(scratch) / "toolkit", Path(scratch) / "imported"
        toolkit.mkdir()
        imported.mkdir()
        make_ready(toolkit)
        from fewtune.model.import_model import import_model, read_lowered
        from fewtune.model.import_options import ImportOptions
        from fewtune.runtime.executable import IS_SCHEDULED, build_executable, export_library
        from fewtune.runtime.target import target_from_json
        from fewtune.runtime.tvm import usable_cores
        from fewtune.schedule.defaults.default import apply_default_schedules
        from fewtune.task.extract import kernels

        target = target_from_json(target_json)
        report = import_model(name, models, target, usable_cores(), ImportOptions(), imported)
        lowered = read_lowered(imported)
        names = sorted(kernels(lowered))
        scheduled = apply_default_schedules(lowered, names, target)
        executable = build_executable(scheduled, target)
        directory.mkdir(parents=True, exist_ok=True)
        export_library(executable, directory / LIBRARY)
    unscheduled = [name for name in names if IS_SCHEDULED not in (scheduled[name].attrs or {})]
    return DeviceLibrary(
        directory / LIBRARY, [], len(names), len(unscheduled), report.max_relative_error
    )

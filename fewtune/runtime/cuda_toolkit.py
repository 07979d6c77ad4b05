"""NVIDIA's compiler from its wheels, made ready for TVM before TVM is loaded.

TVM's CUDA runtime links the driver's library, and without it TVM compiles to CUDA source text that
no program can load, without a word. Where there is no driver, a stand-in with the symbols that the
runtime names lets the compiler through; nothing can be run with it.

Imports nothing that loads TVM.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from fewtune.errors import MachineError

_DRIVER, _RUNTIME = "libcuda.so.1", "libcudart.so.13"
# What libtvm_runtime_cuda.so of apache-tvm 0.27 asks of the driver.
_SYMBOLS = (
    "cuDeviceGetName",
    "cuFuncSetAttribute",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuLaunchKernelEx",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuTensorMapEncodeTiled",
)
_NO_DEVICE = 100
_INSTALL = "install NVIDIA's compiler with `pip install 'fewtune[cuda]'`"


def make_ready(folder: Path) -> bool:
    """Let TVM, when it is loaded later in this process, compile for CUDA.

    Parameters
    ----------
    folder : Path
        Gets the toolkit as TVM expects it, in links, and the stand-in; it has to outlive the use.

    Returns
    -------
    can_run : bool
        Whether there is a driver.

    Raises
    ------
    MachineError
        If the wheels are missing, or TVM is loaded already.
    """
    toolkit = _wheels()
    if importlib.util.find_spec("cuda.bindings") is None:
        raise MachineError(f"the package cuda-bindings is missing: {_INSTALL}")
    if "tvm" in sys.modules:
        raise MachineError("TVM is loaded already: compile for CUDA in a process of its own")
    root = folder / "cuda"
    include = root / "targets" / f"{platform.machine()}-linux" / "include"
    include.parent.mkdir(parents=True)
    include.symlink_to(toolkit / "include")
    for each in toolkit.iterdir():
        (root / each.name).symlink_to(each)
    os.environ["CUDA_PATH"] = str(root)
    can_run = True
    try:
        ctypes.CDLL(_DRIVER, ctypes.RTLD_GLOBAL)
    except OSError:
        can_run = False
        ctypes.CDLL(str(_stand_in(folder)), ctypes.RTLD_GLOBAL)
    ctypes.CDLL(str(toolkit / "lib" / _RUNTIME), ctypes.RTLD_GLOBAL)
    return can_run


def _wheels() -> Path:
    """The folder of NVIDIA's wheels."""
    spec = importlib.util.find_spec("nvidia")
    places = list(spec.submodule_search_locations or []) if spec is not None else []
    for place in places:
        toolkit = Path(place) / "cu13"
        if (toolkit / "lib" / _RUNTIME).is_file() and (toolkit / "include").is_dir():
            return toolkit
    raise MachineError(f"CUDA 13's runtime and headers are missing: {_INSTALL}")


def _stand_in(folder: Path) -> Path:
    """A library of the driver's name, each of whose functions says that there is no device."""
    compiler = next((p for name in ("cc", "gcc", "clang") if (p := shutil.which(name))), None)
    if compiler is None:
        raise MachineError("no C compiler (cc, gcc or clang) is on the PATH: install gcc")
    source, library = folder / "driver.c", folder / _DRIVER
    source.write_text(
        "".join(f"int {name}(void) {{ return {_NO_DEVICE}; }}\n" for name in _SYMBOLS)
    )
    command = [compiler, "-shared", "-fPIC", f"-Wl,-soname,{_DRIVER}", "-o", str(library)]
    subprocess.run([*command, str(source)], check=True, capture_output=True)
    return library

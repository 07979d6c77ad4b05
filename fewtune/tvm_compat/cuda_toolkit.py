"""NVIDIA's compiler, installed or from its wheels, made ready for TVM before TVM is loaded.

TVM's CUDA runtime links the driver's library. Without it, TVM reports no error, and compiles to
CUDA source text that no program can load.

Imports nothing that loads TVM.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from fewtune.util.nvidia_driver import has_nvidia_driver

_RUNTIME = "libcudart.so.13"


def use_own_gpu() -> None:
    """Let TVM, when it is loaded later in this process, use this machine's GPU, if it has one.

    The toolkit is an installed one, or NVIDIA's wheels. Where its headers lie otherwise than TVM
    expects, links in the user's cache lay them out.

    Test: tests/tvm_compat/test_cuda_toolkit.py::test_another_layout_is_linked_in_the_users_cache
    """
    if not has_nvidia_driver():
        return
    found = next((each for each in _toolkits() if _library(each) and _headers(each)), None)
    if found is not None:
        is_laid_out = (_include(found) / "cccl").is_dir()
        with suppress(OSError):
            os.environ["CUDA_PATH"] = str(found if is_laid_out else _cached(found))
    for library in [_RUNTIME, *([] if found is None else [_library(found)])]:
        with suppress(OSError):
            ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
            return


def _toolkits() -> Iterator[Path]:
    """Where a toolkit may be: the one that is named, installed ones, NVIDIA's wheels."""
    if named := os.environ.get("CUDA_PATH"):
        yield Path(named)
    if compiler := shutil.which("nvcc"):
        yield Path(compiler).resolve().parents[1]
    yield Path("/usr/local/cuda")
    if spec := importlib.util.find_spec("nvidia"):
        yield from (Path(place) / "cu13" for place in spec.submodule_search_locations or [])


def _library(toolkit: Path) -> Path | None:
    places = (toolkit / part / _RUNTIME for part in ("lib64", "lib"))
    return next((each for each in places if each.is_file()), None)


def _include(toolkit: Path) -> Path:
    """Where TVM looks for headers."""
    return toolkit / "targets" / f"{platform.machine()}-linux" / "include"


def _headers(toolkit: Path) -> bool:
    return any(
        (each / "cuda_runtime.h").is_file() for each in (_include(toolkit), toolkit / "include")
    )


def _cached(toolkit: Path) -> Path:
    """Links to a toolkit in the user's cache, made whole or not at all."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fewtune"
    cache.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(str(toolkit.resolve()).encode()).hexdigest()[:12]
    root = cache / f"cuda-{digest}"
    if not root.is_dir():
        made = Path(tempfile.mkdtemp(prefix=".cuda-", dir=cache))
        _link(toolkit, made)
        # Where another process was faster, its links are as good.
        with suppress(OSError):
            made.rename(root)
        shutil.rmtree(made, ignore_errors=True)
    return root


def _link(toolkit: Path, root: Path) -> None:
    """Lay a toolkit out as TVM expects it, in links."""
    include = _include(root)
    include.parent.mkdir(parents=True)
    include.symlink_to(toolkit.absolute() / "include")
    for each in toolkit.absolute().iterdir():
        (root / each.name).symlink_to(each)

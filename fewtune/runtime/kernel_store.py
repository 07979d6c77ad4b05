"""Compiled kernels on disk, by content: a kernel that was built once is linked, not built again.

What a search builds, checks and measures is then also what the library holds, byte for byte, and a
model that is tuned again, or by another strategy, compiles only what is new. Kernels are those of a
module as LLVM gets it, so equal kernels of two models are one.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import tvm_ffi

from fewtune.runtime.special_values import PIPELINE
from fewtune.runtime.target import has_own_device, is_foreign
from fewtune.runtime.tvm import compiled, tvm, usable_cores, without_checks
from fewtune.runtime.vector_math import LIBRARY_FUNCTIONS
from fewtune.tvm_compat.noise import without_noise
from fewtune.util.files import file_sha256, write_bytes

# The pipeline of a module whose stored kernels are left to the linker.
LINKING = "fewtune.linking"
# A kernel's own name in its object, and the prefix that TVM gives to what it exports.
_MAIN, _EXPORTED = "main", "__tvm_ffi_"
# Attributes that say nothing about a kernel's code.
_NAMES = ("global_symbol", "target", "op_pattern", "tirx.is_scheduled", "layout_free_buffers")
# Beyond so many kernels (some 30 KB each), the oldest half is removed.
_MOST_KEPT = 20_000
_RENAMER, _LINKER = "objcopy", "ld"


class KernelStore:
    """The kernels that were built for a target.

    Parameters
    ----------
    target : Target
        A CPU like this machine's.
    """

    def __init__(self, target: tvm.target.Target) -> None:
        llvm = tvm.get_global_func("target.llvm_version_major")()
        said = [str(target), tvm.__version__, llvm, _own_code()]
        digest = hashlib.sha256("\n".join(map(str, said)).encode()).hexdigest()[:16]
        self._folder = _folder() / digest
        self._target = target

    @staticmethod
    def of(target: tvm.target.Target) -> KernelStore | None:
        """The store of a target; None where objects cannot be linked by name, or not kept."""
        runs_here = not has_own_device(target) and not is_foreign(target)
        can_link = shutil.which(_RENAMER) is not None and shutil.which(_LINKER) is not None
        return KernelStore(target) if runs_here and can_link and is_own(_folder()) else None

    def path(self, function: tvm.tirx.PrimFunc) -> Path:
        """The object of a scheduled kernel whose weights are laid out; it may not exist yet."""
        for name in _NAMES:
            function = function.without_attr(name) if name in (function.attrs or {}) else function
        return self._folder / f"{tvm_ffi.structural_hash(function) % 2**64:016x}.o"

    def keep(self, function: tvm.tirx.PrimFunc) -> Path:
        """The object of a kernel, which is built unless it is kept."""
        path = self.path(function)
        if not path.is_file():
            with self._built(function) as made:
                write_bytes(path, made.read_bytes())
        return path

    def keep_right(
        self, function: tvm.tirx.PrimFunc, fault_of: Callable[[Any], str]
    ) -> tuple[Path | None, str]:
        """The object of a kernel if its code has no fault, and that; it is built in any case."""
        with self._built(function) as made:
            fault = fault_of(loaded({_MAIN: made}))
            if fault:
                return None, fault
            path = self.path(function)
            write_bytes(path, made.read_bytes())
        return path, ""

    @contextmanager
    def _built(self, function: tvm.tirx.PrimFunc) -> Iterator[Path]:
        """A kernel's object, as long as the block runs."""
        alone = tvm.IRModule({_MAIN: function.with_attr("global_symbol", _MAIN)})
        with without_checks():
            built = compiled(alone, self._target)
        with tempfile.TemporaryDirectory(prefix="fewtune-") as scratch:
            made = Path(scratch, "kernel.o")
            built.write_to_file(str(made))
            yield made

    def load(self, functions: Mapping[str, tvm.tirx.PrimFunc]) -> Any:
        """A module of this process with some kernels, by their symbols."""
        with suppress(subprocess.CalledProcessError):
            return loaded({symbol: self.keep(each) for symbol, each in functions.items()})
        return loaded({symbol: self.keep(each) for symbol, each in functions.items()})

    def tidy(self) -> None:
        """Remove the oldest kernels if there are too many."""
        with suppress(OSError):
            kept = list(_folder().rglob("*.o"))
            if len(kept) > _MOST_KEPT:
                kept.sort(key=lambda path: path.stat().st_mtime)
                for path in kept[: len(kept) // 2]:
                    path.unlink(missing_ok=True)


def _folder() -> Path:
    return cache_home() / "kernels"


def cache_home() -> Path:
    """The folder of everything that is kept across runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fewtune"


def is_own(folder: Path) -> bool:
    """Whether a folder, made if it is missing, is this user's, and nobody else can write there."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = folder.lstat()
    except OSError:
        return False
    return found.st_uid == os.getuid() and not folder.is_symlink() and not found.st_mode & 0o022


@cache
def _own_code() -> str:
    """A digest of the code here that changes what TVM generates."""
    folders = [Path(__file__).parent, Path(__file__).parents[1] / "tvm_compat"]
    return " ".join(file_sha256(path) for each in folders for path in sorted(each.glob("*.py")))


# The objects of the module that is being built, by symbol; None where nothing is linked.
_linking: tuple[KernelStore, dict[str, Path]] | None = None


@contextmanager
def linking(store: KernelStore, objects: dict[str, Path]) -> Iterator[None]:
    """Let modules that are built by `LINKING` have their kernels in ``objects``, by symbol."""
    global _linking
    _linking = store, objects
    try:
        yield
    finally:
        _linking = None
        store.tidy()


def _left_to_the_linker(module: tvm.IRModule) -> tvm.IRModule:
    """The module without the kernels that are kept; those that are missing are built, and kept."""
    assert _linking is not None
    store, objects = _linking
    found = {
        variable.name_hint: function
        for variable, function in module.functions_items()
        if LIBRARY_FUNCTIONS not in (function.attrs or {})
    }
    # Code is generated outside of Python's lock.
    with ThreadPoolExecutor(usable_cores()) as threads:
        objects.update(zip(found, threads.map(store.keep, found.values()), strict=True))
    rest = {v: f for v, f in module.functions_items() if v.name_hint not in found}
    return tvm.IRModule(rest, attrs=module.attrs)


def _linked_pipeline() -> Any:
    pipeline, host, device = tvm.tirx.get_tir_pipeline(PIPELINE)
    return lambda module: pipeline(_left_to_the_linker(module)), host, device


tvm.tirx.compilation_pipeline.register_tir_pipeline(LINKING, _linked_pipeline)


def loaded(objects: Mapping[str, Path]) -> Any:
    """A module of this process with the kernels of objects, each by its symbol."""
    with tempfile.TemporaryDirectory(prefix="fewtune-") as scratch:
        library = f"{scratch}/kernels.so"
        # They need no libraries but their process's. The compiler driver would take twice as long.
        command = [_LINKER, "-shared", "-o", library, *renamed(objects, Path(scratch))]
        subprocess.run(command, check=True, capture_output=True)
        with without_noise():
            return tvm.runtime.load_module(library)


def renamed(objects: Mapping[str, Path], scratch: Path) -> list[str]:
    """Copies of objects in a folder, each kernel by its symbol."""
    copies = []
    for place, (symbol, path) in enumerate(objects.items()):
        copies.append(str(scratch / f"{place}.o"))
        names = f"{_EXPORTED}{_MAIN}={_EXPORTED}{symbol}"
        command = [_RENAMER, "--redefine-sym", names, str(path), copies[-1]]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except subprocess.CalledProcessError:
            # It is damaged: whoever needs the kernel next builds it anew.
            path.unlink(missing_ok=True)
            raise
    return copies

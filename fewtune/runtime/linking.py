"""Writes a library whole, or raises an error of one sentence; loads libraries."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

from fewtune.deploy.runtime import load_as_on_disk
from fewtune.errors import MachineError
from fewtune.runtime.tvm import tvm
from fewtune.tvm_compat.noise import without_noise
from fewtune.util.files import full_disk

_COMPILER = "Compilation error:"
_THREADS = Path(__file__).with_name("threads.c")


def with_own_threads(threads: int, link: Callable[..., None] | None = None) -> Callable[..., None]:
    """A linker as ``link`` whose libraries run on threads of their own (``threads.c``)."""
    from tvm.support import cc

    link = link or cc.create_shared

    @wraps(link)
    def linked(output: str, objects: list[str], options: Sequence[str] = ()) -> None:
        own = ["-O2", "-pthread", f"-DFEWTUNE_THREADS={threads}"]
        # A C++ compiler takes a file of C for one of C++, unless it is told.
        link(output, [*objects, "-x", "c", str(_THREADS)], options=[*options, *own])

    return linked


def export_library(
    built: Any,
    path: Path,
    link: Callable[..., None] | None = None,
    objects: Sequence[str] = (),
) -> None:
    """Write what TVM has built as a library.

    Parameters
    ----------
    built
        A kernel's or a model's executable.
    path : Path
        Of the library.
    link : callable, optional
        Links the object files; TVM's own call of the C compiler unless given.
    objects : sequence of str
        Further object files that belong to it.

    Raises
    ------
    OSError
        If the disk of the library, or that of temporary files, is full: LLVM and linkers say so
        in many ways, or write half of a file.
    MachineError
        If the C compiler cannot link.
    """
    try:
        with without_noise():
            built.export_library(str(path), fcompile=link, addons=list(objects))
    except Exception as fault:
        no_room = full_disk(path.parent, Path(tempfile.gettempdir()))
        if no_room is not None:
            raise no_room from fault
        text = str(fault)
        if _COMPILER in text:
            lines = text.partition(_COMPILER)[2].strip().splitlines()
            raise MachineError(
                f"the C compiler could not link {path.name}: {lines[0] if lines else 'no reason'}"
            ) from fault
        raise


def load_library(path: Path) -> Any:
    """Load a library as it is on disk now."""
    with without_noise():
        return load_as_on_disk(path, tvm.runtime.load_module)

"""Tensor intrinsics of a target, without those of all others."""

from __future__ import annotations

import importlib
import inspect
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PACKAGE = "tvm.s_tir.tensor_intrin"


def light_package() -> None:
    """Replace TVM's package of intrinsics by one whose submodules are imported one by one.

    ``TuneContext`` imports the package, which parses the TVMScript of every intrinsic for every
    target: 14.5 s on a 2-core x86-64 machine, 11 of them for CUDA.

    Test: tests/tvm_compat/test_intrinsics.py::test_intrinsics_of_other_devices_are_not_parsed
    """
    import tvm.s_tir

    if _PACKAGE not in sys.modules:
        package = types.ModuleType(_PACKAGE, "Submodules are imported one by one, as needed.")
        package.__path__ = [str(Path(tvm.s_tir.__file__).parent / "tensor_intrin")]
        sys.modules[_PACKAGE] = package
        tvm.s_tir.tensor_intrin = package


def register_family(family: str) -> None:
    """Register intrinsics: ``x86``, ``arm_cpu``, ``cuda``, ``rocm`` or ``metal``.

    The schedule rules of a target look them up by name when they are made.

    Test: tests/tvm_compat/test_intrinsics.py::test_they_are_what_tvm_itself_registers
    """
    name = f"{_PACKAGE}.{family}"
    if name not in sys.modules:
        with frames_without_source():
            importlib.import_module(name)


@contextmanager
def frames_without_source() -> Iterator[None]:
    """Have `inspect.stack` leave out source lines, so that TVMScript is parsed sooner.

    For each function that it parses, ``tvm.script`` looks up the source of every frame of the
    stack, to see whether the function is in a class. That takes 0.2 s in a process with TVM alone,
    0.7 s in one that has also loaded scikit-learn. No TVMScript in the block, or in a function that
    this decorates, may be in a class.

    Test: tests/tvm_compat/test_intrinsics.py::test_frames_have_no_source_within_the_block
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

"""Compile scheduled kernels, for measuring in place or into libraries that any process can load."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from fewtune.runtime.linking import export_library
from fewtune.runtime.tvm import compiled, module_of, tvm, without_checks
from fewtune.schedule.defaults.default import default_schedule
from fewtune.schedule.prefetch import prefetched
from fewtune.storage.database import replay
from fewtune.trial.trial import Trial


def as_in_model(module: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """A scheduled module as in the compiled library: weights laid out and prefetched."""
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

    laid_out = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(module)
    return prefetched(laid_out, target)


def argument_shapes(function: tvm.tirx.PrimFunc) -> list[tuple[int, ...]]:
    """Shapes of a function's buffers, once its weights are laid out."""
    return [tuple(int(extent) for extent in buffer.shape) for buffer in function.params]


Shapes = list[tuple[int, ...]]


class Candidate(NamedTuple):
    """A kernel to be compiled: its unscheduled module as TVM JSON, and a trial's key, or None."""

    module: str
    key: str | None

    def scheduled(self, target: tvm.target.Target) -> tvm.IRModule:
        """The module with the trial's schedule; without a trial, with its default schedule."""
        module = module_of(self.module)
        if self.key is not None:
            return replay(module, Trial(self.key, None, None), target).mod
        schedule = default_schedule(module, target)
        return module if schedule is None else schedule.mod


class Contender(NamedTuple):
    """A compiled kernel that can be used in some places of the model.

    Attributes
    ----------
    library, symbol : str
        Where its code is.
    shapes : list of tuple of int
        Shapes of its buffers, with weights laid out as it reads them.
    """

    library: str
    symbol: str
    shapes: Shapes


def link(
    path: Path, candidates: dict[str, Candidate], target: tvm.target.Target
) -> dict[str, Contender]:
    """Compile kernels into one library.

    Parameters
    ----------
    path : Path
        The library.
    candidates : dict of Candidate
        By the symbol of each in the library.
    target : Target

    Returns
    -------
    contenders : dict of Contender
        By symbol; without candidates there is no library.
    """
    if not candidates:
        return {}
    functions, contenders = {}, {}
    for symbol, candidate in candidates.items():
        function = as_in_model(candidate.scheduled(target), target)["main"]
        functions[symbol] = function.with_attr("global_symbol", symbol)
        contenders[symbol] = Contender(str(path), symbol, argument_shapes(function))
    with without_checks():
        export_library(compiled(tvm.IRModule(functions), target), path)
    return contenders


def export(built: Any, path: Path) -> None:
    """Write the code of a kernel that was built for measuring, as a library of its own.

    LLVM has optimised it already: writing it takes a fifth of its compilation, 25 ms. The linker is
    called directly, since the compiler driver doubles that time. A kernel needs no libraries but
    those that its process has.
    """
    linker = shutil.which("ld")

    def linked(output: str, objects: list[str], **_: Any) -> None:
        command = [str(linker), "-shared", "-o", output, *objects]
        subprocess.run(command, check=True, capture_output=True)

    linked.output_format = "so"  # type: ignore[attr-defined]  # TVM asks for it
    export_library(built, path, linked if linker else None)

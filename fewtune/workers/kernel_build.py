"""Compile scheduled kernels, for measuring in place or into libraries that any process can load."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import tvm_ffi

from fewtune.runtime.kernel_store import KernelStore
from fewtune.runtime.linking import export_library
from fewtune.runtime.tvm import compiled, module_of, tvm, without_checks
from fewtune.schedule.defaults.default import default_schedule
from fewtune.schedule.prefetch import prefetched
from fewtune.schedule_check.check import Checker, ScheduleCheck
from fewtune.storage.database import replay
from fewtune.task.layout_maps import PREPROC
from fewtune.trial.trial import Trial


def as_in_model(module: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """A scheduled module as in the compiled library: weights laid out and prefetched."""
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

    laid_out = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(module)
    function = laid_out["main"]
    if PREPROC in tvm.ir.save_json(module):
        laid_out = tvm.IRModule({"main": function.with_body(_without_empty(function.body))})
    return prefetched(laid_out, target)


def _without_empty(body: tvm.tirx.Stmt) -> tvm.tirx.Stmt:
    """A kernel's body without the loops that laid out its weights, which TVM leaves empty."""
    tirx, nothing = tvm.tirx, tvm.tirx.Evaluate

    def block(realize: Any) -> Any:
        is_empty = PREPROC in realize.block.annotations and isinstance(realize.block.body, nothing)
        return realize.block.body if is_empty else realize

    def loop(stmt: Any) -> Any:
        return stmt.body if isinstance(stmt.body, nothing) else stmt

    def sequence(stmts: Any) -> Any:
        rest = [each for each in stmts.seq if not isinstance(each, nothing)]
        return rest[0] if len(rest) == 1 else tirx.SeqStmt(rest)

    steps = (tvm.s_tir.SBlockRealize, block), (tirx.For, loop), (tirx.SeqStmt, sequence)
    for step in steps:
        body = tvm_ffi.structural_map(body, step, order="post")
    return body


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
    library : str
        Where its code is.
    shapes : list of tuple of int
        Shapes of its buffers, with weights laid out as it reads them.
    fault : str
        What is wrong with its outputs; empty if they are right, or were not looked at.
    """

    library: str
    shapes: Shapes
    fault: str = ""


class KernelMaker:
    """Builds scheduled kernels, compares their outputs, and keeps those that are right.

    Parameters
    ----------
    target : Target
        Of this machine's CPU.
    checker : Checker
    """

    def __init__(self, target: tvm.target.Target, checker: Checker) -> None:
        self._target, self._checker = target, checker
        self._store = KernelStore.of(target)

    def make(
        self, scheduled: tvm.IRModule, wanted: ScheduleCheck | None, library: str = ""
    ) -> Contender:
        """A kernel, ready to be called.

        Parameters
        ----------
        scheduled : IRModule
        wanted : ScheduleCheck, optional
            What it has to compute; not given for one that is known to be right.
        library : str
            Path of the library to write, if any.
        """
        module = as_in_model(scheduled, self._target)
        function, built = module["main"], None
        shapes, fault = argument_shapes(function), ""
        kept = self._store.path(function) if self._store is not None else None
        linker = shutil.which("ld")
        if wanted is not None or kept is None or linker is None or not kept.is_file():
            with without_checks():
                built = compiled(module, self._target)
        if wanted is not None:
            code = getattr(built, "jit", lambda: built)()
            blocks = scheduled if PREPROC in tvm.ir.save_json(scheduled) else None
            fault = self._checker.check(code, shapes, blocks, wanted).fault
        if not fault and self._store is not None:
            kept = self._store.keep(function, built)
        if library and not fault:
            if kept is None or linker is None:
                export_library(built, Path(library))
            else:
                # The compiler driver takes twice as long, and a kernel needs no other library.
                command = [linker, "-shared", "-o", library, str(kept)]
                subprocess.run(command, check=True, capture_output=True)
        return Contender(library, shapes, fault)

"""Compile scheduled kernels, for measuring in place or into libraries that any process can load."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from fewtune.runtime.kernel_store import KernelStore, link_shared
from fewtune.runtime.linking import export_library
from fewtune.runtime.tvm import compiled, module_of, tvm, without_checks
from fewtune.schedule.defaults.default import default_schedule
from fewtune.schedule.prefetch import prefetched
from fewtune.schedule_check.check import Checker, ScheduleCheck
from fewtune.storage.database import replay
from fewtune.task.layout_maps import PREPROC
from fewtune.task.weight_layout import without_layout_block
from fewtune.trial.trial import Trial


def as_in_model(module: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """A scheduled module as in the compiled library: weights laid out and prefetched."""
    return prefetched(without_layout_block(module), target)


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
        if wanted is not None or kept is None or not kept.is_file():
            with without_checks():
                built = compiled(module, self._target)
        if wanted is not None:
            code = getattr(built, "jit", lambda: built)()
            blocks = scheduled if PREPROC in tvm.ir.save_json(scheduled) else None
            fault = self._checker.check(code, shapes, blocks, wanted).fault
        if not fault and self._store is not None:
            kept = self._store.keep(function, built)
        if library and not fault:
            if kept is None:
                export_library(built, Path(library))
            else:
                link_shared(library, [str(kept)])
        return Contender(library, shapes, fault)

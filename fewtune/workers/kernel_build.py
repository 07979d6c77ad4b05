"""Compile scheduled kernels, for measuring in place or into libraries that any process can load."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from fewtune.runtime.kernel_store import KernelStore
from fewtune.runtime.tvm import compiled, module_of, tvm, without_checks
from fewtune.schedule.defaults.default import default_schedule
from fewtune.schedule.prefetch import prefetched
from fewtune.schedule_check.check import Checker, ScheduleCheck
from fewtune.storage.database import replay
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


class Made(NamedTuple):
    """A kernel that was made ready.

    Attributes
    ----------
    object : Path or None
        Its code, where it is kept (`fewtune.runtime.kernel_store`).
    shapes : list of tuple of int
        Shapes of its buffers, with weights laid out as it reads them.
    fault : str
        What is wrong with its outputs; empty if they are right, or were not looked at.
    """

    object: Path | None
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

    def make(self, scheduled: tvm.IRModule, wanted: ScheduleCheck | None) -> Made:
        """Make a kernel ready; without what it has to compute, it is known to be right."""
        module = as_in_model(scheduled, self._target)
        function, built, fault = module["main"], None, ""
        shapes = argument_shapes(function)
        if wanted is not None:
            with without_checks():
                built = compiled(module, self._target)
            code = getattr(built, "jit", lambda: built)()
            fault = self._checker.check(code, shapes, scheduled, wanted).fault
        if fault or self._store is None:
            return Made(None, shapes, fault)
        return Made(self._store.keep(function, built), shapes)

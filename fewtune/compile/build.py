"""Builds an executable from scheduled kernels, with the wanted optional rewrites."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from fewtune.compile.concatenations import concatenations
from fewtune.compile.in_place import write_in_place
from fewtune.compile.schedules import KernelSchedules, Level
from fewtune.runtime.executable import build_executable, runnable
from fewtune.runtime.tvm import compiled, relax, tvm
from fewtune.schedule.prefetch import prefetched
from fewtune.task import weight_layout
from fewtune.util.apart import in_step

IN_PLACE = "in-place concatenation"
PREFETCH = "prefetched weights"
FOLD = "weights laid out at compile time"
# In the order in which they are left out to find the one that fails.
REWRITES = (IN_PLACE, PREFETCH, FOLD)


@dataclass(frozen=True)
class Plan:
    """The plan of a library.

    Attributes
    ----------
    levels : mapping of Level
        By kernel.
    rewrites : frozenset of str
        Some of `REWRITES`.
    """

    levels: Mapping[str, Level]
    rewrites: frozenset[str]


@dataclass
class Built:
    """An executable, and the calls of concatenations that it leaves out."""

    executable: relax.VMExecutable
    left_out: Counter[str] = field(default_factory=Counter)


def build(
    lowered: tvm.IRModule, schedules: KernelSchedules, plan: Plan, target: tvm.target.Target
) -> Built:
    """Build a model as a plan says.

    Parameters
    ----------
    lowered : IRModule
    schedules : KernelSchedules
        Of its kernels.
    plan : Plan
    target : Target
    """
    axes = concatenations(lowered) if IN_PLACE in plan.rewrites else {}
    left_out: Counter[str] = Counter()

    def in_place(module: tvm.IRModule) -> tvm.IRModule:
        with in_step(IN_PLACE):
            rewritten, calls = write_in_place(module, axes)
        left_out.update(calls)
        return rewritten

    module = schedules.module(plan.levels)
    if FOLD in plan.rewrites:
        with in_step(FOLD):
            module = weight_layout.fold(module)
        # If kernels lay their weights out themselves, the address of the next panel is not known.
        if PREFETCH in plan.rewrites:
            with in_step(PREFETCH):
                module = prefetched(module, target)
    executable = build_executable(module, target, in_place if axes else None)
    return Built(executable, left_out)


def kernel_fault(
    schedules: KernelSchedules, name: str, level: Level, target: tvm.target.Target
) -> Exception | None:
    """The exception that compiling a kernel alone raises, if any."""
    try:
        function = schedules.module({name: level})[name]
        compiled(runnable(tvm.IRModule({name: function}), target), target)
    except Exception as fault:  # noqa: BLE001 (the exception is the answer)
        return fault
    return None

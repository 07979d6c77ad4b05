"""Builds an executable from scheduled kernels, with optional rewrites."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fewtune.compile.concatenations import concatenations
from fewtune.compile.in_place import write_in_place
from fewtune.compile.schedules import KernelSchedules, Level
from fewtune.process.apart import in_step
from fewtune.runtime.executable import build_executable
from fewtune.runtime.kernel_store import LINKING, KernelStore, linking
from fewtune.runtime.tvm import relax, tvm
from fewtune.schedule.prefetch import prefetched
from fewtune.task import weight_layout
from fewtune.task.analysis import calls_fit

IN_PLACE = "in-place concatenation"
PREFETCH = "prefetched weights"
FOLD = "weights laid out at compile time"
KEPT = "kernels built before"
# If a build fails, they are left out in this order to find the one at fault.
REWRITES = (KEPT, IN_PLACE, PREFETCH, FOLD)


@dataclass(frozen=True)
class Plan:
    """How a library is built.

    Attributes
    ----------
    levels : mapping of Level
        How each kernel is scheduled, by name.
    rewrites : frozenset of str
        Those of `REWRITES` that are applied.
    """

    levels: Mapping[str, Level]
    rewrites: frozenset[str]


@dataclass
class BuiltModel:
    """An executable.

    Attributes
    ----------
    executable : VMExecutable
    left_out : Counter of str
        Calls of concatenations that it does not need, by kernel.
    objects : dict of Path
        Compiled kernels that are still to be linked, by symbol.
    """

    executable: relax.VMExecutable
    left_out: Counter[str] = field(default_factory=Counter)
    objects: dict[str, Path] = field(default_factory=dict)


def build(
    lowered: tvm.IRModule, schedules: KernelSchedules, plan: Plan, target: tvm.target.Target
) -> BuiltModel:
    """Build a model by a plan.

    Parameters
    ----------
    lowered : IRModule
    schedules : KernelSchedules
        Schedules of its kernels.
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
        # Prefetching needs weights laid out at compile time: else the next panel has no address.
        if PREFETCH in plan.rewrites:
            with in_step(PREFETCH):
                module = prefetched(module, target)
    rewrite = in_place if axes else None
    store = KernelStore.of(target) if KEPT in plan.rewrites and calls_fit(module) else None
    if store is None:
        return BuiltModel(build_executable(module, target, rewrite), left_out)
    objects: dict[str, Path] = {}
    with in_step(KEPT), linking(store, objects):
        executable = build_executable(module, target, rewrite, pipeline=LINKING)
    return BuiltModel(executable, left_out, objects)

"""Builds an executable from scheduled kernels, with optional rewrites."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fewtune.compile.in_place import concatenations, write_in_place
from fewtune.compile.schedules import KernelSchedules, Level
from fewtune.process.apart import in_step
from fewtune.process.optional_steps import OptionalSteps
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
# Optional steps of a build; a step comes before those that depend on it.
REWRITES = (FOLD, PREFETCH, IN_PLACE, KEPT)


@dataclass
class BuiltModel:
    """An executable.

    Attributes
    ----------
    levels : mapping of Level
        How each kernel is scheduled, by name.
    executable : VMExecutable
    left_out : Counter of str
        Calls of concatenations that it does not need, by kernel.
    objects : dict of Path
        Compiled kernels that are still to be linked, by symbol.
    """

    levels: Mapping[str, Level]
    executable: relax.VMExecutable = None
    left_out: Counter[str] = field(default_factory=Counter)
    objects: dict[str, Path] = field(default_factory=dict)


def build(
    lowered: tvm.IRModule,
    schedules: KernelSchedules,
    steps: OptionalSteps,
    target: tvm.target.Target,
) -> BuiltModel:
    """Build a model with those of `REWRITES`, and with those schedules, that are used."""
    axes = concatenations(lowered) if steps.uses(IN_PLACE) else {}
    built = BuiltModel(levels=schedules.levels_with(steps))

    def in_place(module: tvm.IRModule) -> tvm.IRModule:
        with steps.step(IN_PLACE):
            rewritten, calls = write_in_place(module, axes)
        built.left_out.update(calls)
        return rewritten

    module = schedules.module(built.levels)
    if steps.uses(FOLD):
        # If weights get lost, a schedule is at fault, and no rewrite.
        with in_step(FOLD):
            module = weight_layout.fold(module)
        # Prefetching needs weights laid out at compile time: else the next panel has no address.
        if steps.uses(PREFETCH):
            with steps.step(PREFETCH):
                module = prefetched(module, target)
    rewrite = in_place if axes else None
    store = KernelStore.of(target) if steps.uses(KEPT) and calls_fit(module) else None
    if store is None:
        built.executable = build_executable(module, target, rewrite)
        return built
    with in_step(KEPT), linking(store, built.objects):
        built.executable = build_executable(module, target, rewrite, pipeline=LINKING)
    return built

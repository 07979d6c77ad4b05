"""Kernels of other shapes than the largest: they take its schedules, moved to their extents.

Weights are stored once where such a kernel has the largest shape's layouts. A moved kernel was not
measured, nor compared with its task: the library's outputs at its shape show whether it is right.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import KeysView
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache

import tvm_ffi

from fewtune.compile.schedules import KernelSchedules, Level
from fewtune.process.apart import at
from fewtune.runtime.tvm import ms, tvm, usable_cores
from fewtune.schedule.space.search_space import SearchSpace
from fewtune.schedule.space.transfer import Donation, move
from fewtune.storage.database import best_trials
from fewtune.task.extract import Task, twins_of
from fewtune.task.weight_layout import layout_blocks


def serve_other_shapes(
    schedules: KernelSchedules,
    tasks: list[Task],
    database: ms.database.Database,
    target: tvm.target.Target,
    left_out: KeysView[str],
) -> dict[str, str]:
    """Give kernels of other shapes the schedules of their twins.

    A schedule of the log stays, unless only the moved one has the twin's layouts. Returns, by
    kernel, why it has layouts of its own.
    """
    kernels = defaultdict(list)
    for kernel, workload in schedules.workloads.items():
        kernels[workload].append(kernel)
    by_name = {task.info.name: task for task in tasks}
    first = {name: kernels[task.info.workload][0] for name, task in by_name.items()}
    logged = {name for name, kernel in first.items() if schedules.levels[kernel] == Level.LOG}
    infos = [task.info for task in tasks]
    twins, own = twins_of(infos), [info.name for info in infos if info.is_of_other_shape]
    others = [by_name[name] for name in own if not logged.isdisjoint((name, twins.get(name)))]
    names = [kernel for task in others for kernel in kernels[task.info.workload]]
    if not names or left_out & names:
        return {}
    at("moving schedules to other shapes", optional=names)
    layouts_of = cache(lambda name: _layouts(schedules.scheduled(first[name])))
    donations_of = cache(lambda name: _donations(by_name[name], database))

    def served(task: Task) -> tuple[tvm.tirx.PrimFunc | None, bool]:
        """Its kernel if it has a schedule, and whether that has the twin's layouts."""
        name, twin = task.info.name, twins.get(task.info.name, task.info.name)
        if name in logged and layouts_of(name) == layouts_of(twin):
            return schedules.scheduled(first[name]), True
        moved = _moved(task, donations_of(twin), target)
        if moved is not None:
            is_alike = _layouts(moved) == layouts_of(twin)
            if is_alike or name not in logged:
                return moved, is_alike
        kept = schedules.scheduled(first[name]) if name in logged else None
        return kept, layouts_of(name) == layouts_of(twin)

    apart = {}
    with ThreadPoolExecutor(usable_cores()) as threads:
        for task, (made, is_alike) in zip(others, threads.map(served, others), strict=True):
            for kernel in kernels[task.info.workload]:
                if made is not None:
                    schedules.take(kernel, made)
                if not is_alike:
                    apart[kernel] = "no schedule of it reads the largest shape's layout"
    return apart


def _layouts(kernel: tvm.tirx.PrimFunc) -> dict[int, int]:
    """A hash of the layout of each weight, by number of the argument; of none that is as given."""
    blocks = layout_blocks(tvm.IRModule({"main": kernel}))
    return {
        place: tvm_ffi.structural_hash(block.body, map_free_vars=True)
        for place, block in blocks.items()
    }


def _donations(twin: Task, database: ms.database.Database) -> list[Donation]:
    with suppress(Exception):
        return [Donation.of(each.trace) for each in best_trials(database, twin.mod, 1)]
    return []


def _moved(
    task: Task, donations: list[Donation], target: tvm.target.Target
) -> tvm.tirx.PrimFunc | None:
    """A task with its twin's schedule; None if there is none, or that does not fit."""
    # A task that TVM fails on keeps its default schedule.
    with suppress(Exception):
        for made in move(donations, SearchSpace(task.mod, target)):
            if made.schedule:
                return made.schedule.mod["main"]
    return None

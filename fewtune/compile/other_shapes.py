"""Kernels of other shapes than the largest: they take its schedules, moved to their extents.

Weights are stored once where such a kernel has the largest shape's layouts. A moved kernel was not
measured: it is built here first, and compared with its task.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import KeysView
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Lock
from typing import Any, ClassVar

import tvm_ffi

from fewtune.compile.schedules import KernelSchedules, Level
from fewtune.errors import last_line
from fewtune.measure.device import Device
from fewtune.process.apart import at
from fewtune.runtime.kernel_store import KernelStore
from fewtune.runtime.tvm import ms, set_threads, tvm, usable_cores
from fewtune.schedule.space.search_space import SearchSpace
from fewtune.schedule.space.transfer import Donation, move
from fewtune.schedule_check.check import Checker, ScheduleCheck, Verdict
from fewtune.storage.database import best_trials
from fewtune.task.extract import Task, twins_of
from fewtune.task.weight_layout import layout_blocks
from fewtune.workers.worker import KernelMaker, as_in_model


def serve_other_shapes(
    schedules: KernelSchedules,
    tasks: list[Task],
    database: ms.database.Database,
    device: Device,
    left_out: KeysView[str],
) -> dict[str, str]:
    """Give kernels of other shapes the schedules of their twins, and keep those that are right.

    A schedule of the log stays, unless only the moved one has the twin's layouts. Wrong kernels get
    their default schedules. Returns, by kernel, why it has layouts of its own.
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
    fault = _Faults(device.target) if device.can.shared_cores else lambda *_: ""

    def served(task: Task) -> tuple[tvm.tirx.PrimFunc | None, bool, str]:
        """Its kernel if it has a schedule, whether that has the twin's layouts, and its fault."""
        name, twin = task.info.name, twins.get(task.info.name, task.info.name)
        wanted = _layouts(schedules.scheduled(first[twin]))
        found = [schedules.scheduled(first[name])] if name in logged else []
        if not found or _layouts(found[0]) != wanted:
            found += _moved(task, by_name[twin], database, device.target)
        if not found:
            return None, _layouts(schedules.scheduled(first[name])) == wanted, ""
        made = min(found, key=lambda each: _layouts(each) != wanted)
        return made, _layouts(made) == wanted, fault(task, made)

    apart = {}
    with ThreadPoolExecutor(usable_cores()) as threads:
        for task, (made, is_alike, text) in zip(others, threads.map(served, others), strict=True):
            for kernel in kernels[task.info.workload]:
                if text:
                    schedules.levels[kernel] = Level.DEFAULT
                    schedules.failed[kernel] = f"moved to another shape, {text}"
                elif made is not None:
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


def _moved(
    task: Task, twin: Task, database: ms.database.Database, target: tvm.target.Target
) -> list[tvm.tirx.PrimFunc]:
    """A task with its twin's schedule in the log; none if that does not fit."""
    # A task that TVM fails on keeps its default schedule.
    with suppress(Exception):
        donations = [Donation.of(each.trace) for each in best_trials(database, twin.mod, 1)]
        made = move(donations, SearchSpace(task.mod, target))
        return [each.schedule.mod["main"] for each in made if each.schedule]
    return []


class _Faults:
    """What is wrong with kernels; those that are kept were checked before."""

    def __init__(self, target: tvm.target.Target) -> None:
        set_threads(1)
        self._target, self._store = target, KernelStore.of(target)
        self._maker = KernelMaker(target, _InTurns(target))

    def __call__(self, task: Task, made: tvm.tirx.PrimFunc) -> str:
        module = tvm.IRModule({"main": made.with_attr("global_symbol", "main")})
        try:
            kept = as_in_model(module, self._target)["main"]
            if self._store and self._store.path(kept).is_file():
                return ""
            wanted = ScheduleCheck(task.info.workload, tvm.ir.save_json(task.mod))
            return self._maker.make(module, wanted).fault
        except Exception as error:  # noqa: BLE001 (TVM raises many kinds)
            return last_line(error)


class _InTurns(Checker):
    """Runs one kernel at a time, while others are compiled."""

    _turn: ClassVar = Lock()

    def check(self, *given: Any) -> Verdict:
        """Compare a candidate (`Checker.check`)."""
        with self._turn:
            return super().check(*given)

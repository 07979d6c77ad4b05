"""Kernels of other shapes than the largest: their weights in its layouts, and their checks.

They take the largest shape's schedules, moved to their extents and built here first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import KeysView
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any, ClassVar

import tvm_ffi

from fewtune.compile.schedules import KernelSchedules, Level
from fewtune.errors import last_line
from fewtune.process.apart import at
from fewtune.runtime.kernel_store import KernelStore
from fewtune.runtime.tvm import ms, set_threads, tvm, usable_cores
from fewtune.schedule.space.search_space import SearchSpace
from fewtune.schedule.space.transfer import donation_of, move
from fewtune.schedule_check.check import Checker, ScheduleCheck, Verdict
from fewtune.storage.database import best_trials
from fewtune.task.extract import Task, twins_of
from fewtune.task.weight_layout import layout_blocks
from fewtune.trial.trial import plain
from fewtune.workers.worker import KernelMaker, as_in_model


def share_layouts(
    schedules: KernelSchedules,
    tasks: list[Task],
    database: ms.database.Database,
    target: tvm.target.Target,
) -> dict[str, str]:
    """Give kernels of other shapes schedules with the largest's layouts: weights are stored once.

    Returns, by kernel, why it keeps layouts of its own.
    """
    by_name, kernels = {task.info.name: task for task in tasks}, _kernels(schedules)
    kept: dict[str, str] = {}
    for name, twin in twins_of([task.info for task in tasks]).items():
        task, largest = by_name[name], by_name[twin]
        own, *_ = of_task = kernels[task.info.workload]
        wanted = _layouts(schedules.scheduled(kernels[largest.info.workload][0]))
        if _layouts(schedules.scheduled(own)) == wanted:
            continue
        made = _moved(task, largest, database, target)
        for kernel in of_task:
            if made is None or _layouts(made) != wanted:
                kept[kernel] = "no schedule of it reads the largest shape's layout"
            else:
                schedules.take(kernel, made)
    return kept


def _kernels(schedules: KernelSchedules) -> dict[str, list[str]]:
    """The kernels of each workload."""
    found = defaultdict(list)
    for kernel, workload in schedules.workloads.items():
        found[workload].append(kernel)
    return found


def _layouts(kernel: tvm.tirx.PrimFunc) -> dict[int, int]:
    """A hash of the layout of each weight, by number of the argument; of none that is as given."""
    blocks = layout_blocks(tvm.IRModule({"main": kernel}))
    return {
        place: tvm_ffi.structural_hash(block.body, map_free_vars=True)
        for place, block in blocks.items()
    }


def _moved(
    task: Task, donor: Task, database: ms.database.Database, target: tvm.target.Target
) -> tvm.tirx.PrimFunc | None:
    """A task with the largest shape's schedule in the log; None if there is none that fits."""
    traces = [plain(each.trace.as_json()) for each in best_trials(database, donor.mod, 1)]
    donations = [donation_of(donor.mod, trace) for trace in traces]
    made = move(donations, SearchSpace(task.mod, target)) if donations else []
    return next((each.schedule.mod["main"] for each in made if each.schedule), None)


def check_moved(
    schedules: KernelSchedules,
    tasks: list[Task],
    left_out: KeysView[str],
    target: tvm.target.Target,
) -> None:
    """Compare kernels of other shapes with their tasks, and keep those that are right.

    Wrong ones get their default schedules. Kernels that are kept were checked before.
    """
    others = {task.info.workload: task for task in tasks if task.info.is_of_other_shape}
    kernels = {
        workload: names
        for workload, names in _kernels(schedules).items()
        if workload in others and schedules.levels[names[0]] == Level.LOG
    }
    names = [name for each in kernels.values() for name in each]
    if not names or left_out & names:
        return
    at("checking kernels of other shapes", optional=names)
    maker, store = KernelMaker(target, _InTurns(target)), KernelStore.of(target)
    set_threads(1)

    def fault(workload: str) -> str:
        scheduled = schedules.scheduled(kernels[workload][0]).with_attr("global_symbol", "main")
        module = tvm.IRModule({"main": scheduled})
        if store and store.path(as_in_model(module, target)["main"]).is_file():
            return ""
        wanted = ScheduleCheck(workload, tvm.ir.save_json(others[workload].mod))
        try:
            return maker.make(module, wanted).fault
        except Exception as error:  # noqa: BLE001 (TVM raises many kinds)
            return last_line(error)

    with ThreadPoolExecutor(usable_cores()) as threads:
        for workload, text in zip(kernels, threads.map(fault, kernels), strict=True):
            for name in kernels[workload] if text else ():
                schedules.levels[name] = Level.DEFAULT
                schedules.failed[name] = f"moved to another shape, {text}"


class _InTurns(Checker):
    """Runs one kernel at a time, while others are compiled."""

    _turn: ClassVar = Lock()

    def check(self, *given: Any) -> Verdict:
        """Compare a candidate (`Checker.check`)."""
        with self._turn:
            return super().check(*given)

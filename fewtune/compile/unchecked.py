"""Checks predicted schedules before they are compiled.

The outputs of measured schedules were checked during tuning. Predicted schedules were never run.
"""

from __future__ import annotations

from pathlib import Path

from fewtune.artifacts import LogInfo
from fewtune.compile.schedules import KernelSchedules, kind_and_line
from fewtune.runtime.target import has_own_device, is_foreign
from fewtune.runtime.tvm import build, tvm, without_checks
from fewtune.schedule_check.check import Checker, ScheduleCheck
from fewtune.task.extract import Task
from fewtune.workers.kernel_build import argument_shapes, as_in_model

# The name of this check in `left_out` of a compilation.
SCHEDULE_CHECK = "schedule_check"


def needs_check(share_directory: Path, target: tvm.target.Target) -> bool:
    """Whether a log holds predicted schedules that can run on this machine."""
    is_here = not has_own_device(target) and not is_foreign(target)
    # Only sharing writes this file; the schedules of other logs were measured.
    has_info = (share_directory / LogInfo.file_name).is_file()
    return is_here and has_info and LogInfo.read(share_directory).predicted


def leave_out_wrong(
    schedules: KernelSchedules, tasks: list[Task], target: tvm.target.Target
) -> dict[str, str]:
    """Schedule kernels by default if their schedules in the log compute wrong results.

    Parameters
    ----------
    schedules : KernelSchedules
        Its levels are changed.
    tasks : list of Task
    target : Target
        Of this machine.

    Returns
    -------
    reasons : dict of str
        By kernel, the fault of the schedule that was left out.
    """
    checker = Checker(target)
    by_workload = {task.info.workload: task for task in tasks}
    faults: dict[str, str] = {}
    found = {}
    for name, (workload, function) in sorted(schedules.from_log().items()):
        if workload not in faults:
            faults[workload] = _fault(checker, by_workload[workload], function, target)
        if faults[workload]:
            schedules.leave_out(name)
            found[name] = faults[workload]
    return found


def _fault(
    checker: Checker, task: Task, function: tvm.tirx.PrimFunc, target: tvm.target.Target
) -> str:
    """The fault of a scheduled kernel; empty if its outputs are right."""
    scheduled = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    try:
        module = as_in_model(scheduled, target)
        with without_checks():
            built = build(module, target)
        wanted = ScheduleCheck(task.info.workload, tvm.ir.save_json(task.mod))
        text = tvm.ir.save_json(scheduled)
        fault = checker.check(built, argument_shapes(module["main"]), text, wanted).fault
    except Exception as error:  # noqa: BLE001 (a schedule that cannot be checked is not used)
        return f"it could not be checked: {kind_and_line(error)}"
    return f"wrong output: {fault}" if fault else ""

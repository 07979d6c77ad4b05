"""Apply the tuning log, schedule the rest, build, export, and verify."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from fewtune.artifacts import CompileReport, Fingerprint, ImportReport
from fewtune.compile.concatenations import concatenations
from fewtune.compile.in_place import write_in_place
from fewtune.errors import VerificationError
from fewtune.machine.fingerprint import require_compiler
from fewtune.runtime.executable import CompiledModel, build_executable
from fewtune.runtime.target import has_own_device, target_from_json
from fewtune.runtime.tvm import ms, tvm
from fewtune.schedule.defaults.default import apply_default_schedules
from fewtune.schedule.prefetch import prefetched
from fewtune.storage.database import best_trials, read_database
from fewtune.task import weight_layout
from fewtune.task.extract import Task, kernels
from fewtune.verify.comparison import Difference
from fewtune.verify.reference import Reference

LIBRARY = "model.so"


class CompileOptions(BaseModel):
    """How a model is compiled, and verified."""

    model_config = ConfigDict(extra="forbid")

    in_place: Literal["auto", "never"] = Field(
        default="auto",
        description="auto: parts of a concatenation are computed in its buffer, on CPUs; never: "
        "every concatenation copies them",
    )
    allowance: float = Field(
        default=1.0, gt=0, description="multiplies what rounding may move each output element"
    )


def apply_log(
    lowered: tvm.IRModule, tasks: list[Task], database: ms.database.Database
) -> tuple[tvm.IRModule, list[str], list[str]]:
    """Give every kernel the best schedule that the log has for it.

    Returns
    -------
    scheduled : IRModule
    served : list of str
        Kernels with a schedule from the log.
    rest : list of str
        Kernels without one.
    """
    by_workload = {task.info.workload: task for task in tasks}
    best: dict[str, tvm.tirx.PrimFunc] = {}
    served, rest = [], []
    scheduled = tvm.IRModule(dict(lowered.functions_items()), attrs=lowered.attrs)
    for name, workload in sorted(kernels(lowered).items()):
        task = by_workload.get(workload)
        if task is not None and workload not in best:
            records = best_trials(database, task.mod, 1)
            if records:
                schedule = tvm.s_tir.Schedule(task.mod)
                records[0].trace.apply_to_schedule(schedule, remove_postproc=False)
                best[workload] = schedule.mod["main"]
        if workload not in best:
            rest.append(name)
            continue
        function = best[workload].with_attr("global_symbol", name)
        scheduled.update_func(
            lowered.get_global_var(name), function.with_attr("tirx.is_scheduled", True)
        )
        served.append(name)
    return scheduled, served, rest


def compile_model(
    lowered: tvm.IRModule,
    tasks: list[Task],
    share_directory: Path,
    import_directory: Path,
    fingerprint: Fingerprint,
    options: CompileOptions,
    directory: Path,
    *,
    model: str,
    strategy: str,
) -> CompileReport:
    """Build the tuned library into ``directory`` and compare it with onnxruntime.

    Parameters
    ----------
    lowered : IRModule
    tasks : list of Task
    share_directory : Path
        The tuning log of all tasks.
    import_directory : Path
        Holds the reference model.
    fingerprint : Fingerprint
    options : CompileOptions
    directory : Path
        Gets ``model.so`` and ``compile.json``.
    model, strategy : str
        Whose library it is.

    Raises
    ------
    MachineError
        If there is no C compiler to link the library with.
    VerificationError
        If outputs leave their allowance (`fewtune.verify`).
    """
    require_compiler()
    started = time.perf_counter()
    target = target_from_json(fingerprint.target)
    scheduled, served, rest = apply_log(lowered, tasks, read_database(share_directory))
    scheduled = apply_default_schedules(scheduled, rest, target)
    unscheduled = [
        name for name in rest if not scheduled[name].attrs.get("tirx.is_scheduled", False)
    ]
    may_rewrite = options.in_place == "auto" and not has_own_device(target)
    axes = concatenations(lowered) if may_rewrite else {}
    left_out: Counter[str] = Counter()

    def in_place(module: tvm.IRModule) -> tvm.IRModule:
        rewritten, calls = write_in_place(module, axes)
        left_out.update(calls)
        return rewritten

    folded = prefetched(weight_layout.fold(scheduled), target)
    executable = build_executable(folded, target, in_place)
    library = directory / LIBRARY
    executable.export_library(str(library))
    compile_s = time.perf_counter() - started
    found = verify(library, import_directory, target, options.allowance)
    if not found.allowances <= 1:
        imported = ImportReport.read(import_directory)
        raise VerificationError(
            f"{model} ({strategy}): of the tuned library, {found.text}; untuned, the same kernels "
            f"were within {imported.allowances:.2g} allowances; nothing was exported"
        )
    task_of = _task_of(lowered, tasks)
    report = CompileReport(
        model=model,
        strategy=strategy,
        library=LIBRARY,
        scheduled_from_log=len(served),
        scheduled_by_default=len(rest) - len(unscheduled),
        unscheduled=unscheduled,
        in_place=_by_task(left_out, task_of),
        other_names={kernel: task for kernel, task in task_of.items() if kernel != task},
        allowances=found.allowances,
        max_error=found.max_error,
        max_relative_error=found.max_relative_error,
        compile_s=round(compile_s, 3),
    )
    report.write(directory)
    return report


def _task_of(lowered: tvm.IRModule, tasks: list[Task]) -> dict[str, str]:
    """The task that every kernel is of, by name; a task is named after the first of equal ones."""
    names = {task.info.workload: task.info.name for task in tasks}
    workloads = sorted(kernels(lowered).items())
    return {kernel: names[workload] for kernel, workload in workloads if workload in names}


def _by_task(calls: Counter[str], task_of: dict[str, str]) -> dict[str, int]:
    """Calls of kernels as calls of the tasks that they are of."""
    found: Counter[str] = Counter()
    for kernel, count in calls.items():
        found[task_of[kernel]] += count
    return dict(sorted(found.items()))


def verify(
    library: Path, import_directory: Path, target: tvm.target.Target, allowance: float = 1.0
) -> Difference:
    """Compare a library's outputs with onnxruntime's, on every draw that the import kept."""
    inputs = ImportReport.read(import_directory).inputs
    compiled = CompiledModel(library, target)
    return Reference.read(import_directory).check(
        lambda feeds: compiled.outputs([feeds[spec.name] for spec in inputs]), allowance
    )

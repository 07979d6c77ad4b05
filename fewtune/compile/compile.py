"""Compiles a model: applies the tuning log, builds, verifies and exports the library."""

from __future__ import annotations

import logging
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from fewtune.artifacts import (
    CompileReport,
    Fingerprint,
    ImportReport,
    LeftOut,
    ReplacedSchedule,
)
from fewtune.compile.build import IN_PLACE, REWRITES, BuiltModel, Plan, build
from fewtune.compile.one_layout import share_layouts
from fewtune.compile.options import CompileOptions
from fewtune.compile.schedules import KernelSchedules, Level
from fewtune.compile.seal import seal
from fewtune.compile.working_plan import PlanSearch, WorkingPlan
from fewtune.errors import VerificationError
from fewtune.machine.fingerprint import require_compiler
from fewtune.machine.rpc_board import BoardModel
from fewtune.measure.device import Device, device_of
from fewtune.model.import_model import shape_folder
from fewtune.process.apart import at
from fewtune.runtime.executable import CompiledModel
from fewtune.runtime.kernel_store import renamed
from fewtune.runtime.linking import export_library, with_own_threads
from fewtune.runtime.target import has_own_device, target_from_json
from fewtune.runtime.tvm import tvm
from fewtune.storage.database import read_database
from fewtune.task.analysis import model_functions
from fewtune.task.extract import Task, kernels
from fewtune.verify.comparison import Difference
from fewtune.verify.reference import Reference

LIBRARY = "model.so"
# Its name until its outputs are known to be right.
_CHECKED = "checked.so"
# What a compilation can leave out in addition to `REWRITES`.
TUNED, DEFAULTS = "tuned_schedules", "default_schedules"
_LOG = logging.getLogger(__name__)


class TunedParts(NamedTuple):
    """What a library is made of.

    Attributes
    ----------
    model, strategy : str
        Names for the report.
    lowered : IRModule
    tasks : list of Task
    imported : Path
        Folder of the imported model, with onnxruntime's outputs.
    shared : Path
        Folder of the tuning log of all tasks.
    """

    model: str
    strategy: str
    lowered: tvm.IRModule
    tasks: list[Task]
    imported: Path
    shared: Path


def compile_model(
    parts: TunedParts,
    fingerprint: Fingerprint,
    options: CompileOptions,
    directory: Path,
    *,
    say: Callable[[str], None] = _LOG.info,
    left_out: Mapping[str, str] | None = None,
) -> CompileReport:
    """Build the tuned library in ``directory`` and compare its outputs with onnxruntime's.

    A rewrite that fails is left out. A kernel that does not compile, or computes wrong results, is
    scheduled by default. The report names both (`fewtune.compile.working_plan`).

    Parameters
    ----------
    parts : TunedParts
    fingerprint : Fingerprint
    options : CompileOptions
    directory : Path
        Gets ``model.so`` and ``compile.json``.
    say : callable, optional
        Gets a line if something is left out.
    left_out : mapping, optional
        Those of `REWRITES`, `TUNED` and `DEFAULTS` that are known to fail, with the reason.
        Default schedules that the import left out are also left out here.

    Raises
    ------
    MachineError
        If there is no C compiler to link the library.
    VerificationError
        If outputs differ by more than allowed (`fewtune.verify`), whatever is left out.
    """
    require_compiler()
    started = time.perf_counter()
    name = f"{parts.model} ({parts.strategy})"
    target, device = target_from_json(fingerprint.target), device_of(fingerprint)
    database = read_database(parts.shared)
    schedules = KernelSchedules(parts.lowered, parts.tasks, database, target)
    known = _left_out_by_import(parts.imported) | dict(left_out or {})
    difference = _difference_of(parts.imported, options.allowance)
    apart: dict[str, str] = {}
    if len(model_functions(parts.lowered)) > 1:
        apart = share_layouts(parts.lowered, schedules, parts.tasks, database, target)
    exported = _Exported(directory / _CHECKED, device, difference)
    search = PlanSearch(
        build=lambda plan: build(parts.lowered, schedules, plan, target),
        error_of=lambda built: exported.difference(built).allowances,
        plain=schedules.plain,
        say=lambda line: say(f"{name}: {line}"),
    )
    working = search.find(_first_plan(schedules.levels, _rewrites(options, target), known))
    found = exported.difference(working.built)
    imported = ImportReport.read(parts.imported)
    if not found.allowances <= 1:
        raise VerificationError(
            f"{name}: of the tuned library, {found.text}; untuned, its outputs "
            f"differed by {imported.allowances:.2g} allowances; nothing was exported"
        )
    seal(exported.path, parts.model, fingerprint, imported, found)
    exported.path.rename(directory / LIBRARY)
    reasons = {each: f"its record does not apply: {why}" for each, why in schedules.failed.items()}
    search.replaced[:0] = [
        ReplacedSchedule(kernel=each, schedule=working.plan.levels[each].text, reason=reason)
        for each, reason in sorted(reasons.items())
    ]
    search.left_out[:0] = [LeftOut(what=what, reason=reason) for what, reason in known.items()]
    search.left_out += [LeftOut(what=f"one layout of {k}", reason=why) for k, why in apart.items()]
    report = _report(parts, working, search, found, round(time.perf_counter() - started, 3))
    report.write(directory)
    return report


def _report(
    parts: TunedParts,
    working: WorkingPlan,
    search: PlanSearch,
    found: Difference,
    compile_s: float,
) -> CompileReport:
    levels, task_of = working.plan.levels, _task_of(parts.lowered, parts.tasks)
    counts = Counter(levels.values())
    in_place: Counter[str] = Counter()
    for kernel, count in working.built.left_out.items():
        in_place[task_of[kernel]] += count
    return CompileReport(
        model=parts.model,
        strategy=parts.strategy,
        library=LIBRARY,
        scheduled_from_log=counts[Level.LOG],
        scheduled_by_default=counts[Level.DEFAULT] + counts[Level.PLAIN_DEFAULT],
        unscheduled=sorted(name for name in levels if levels[name] == Level.UNSCHEDULED),
        in_place=dict(sorted(in_place.items())),
        left_out=search.left_out,
        replaced=search.replaced,
        other_names={kernel: task for kernel, task in task_of.items() if kernel != task},
        allowances=found.allowances,
        max_error=found.max_error,
        max_relative_error=found.max_relative_error,
        compile_s=compile_s,
    )


class _Exported:
    """The library of one build at a time, whose outputs are compared with onnxruntime's.

    The code that is checked is the code that is used. Checked in memory first, it was generated by
    LLVM twice.
    """

    def __init__(
        self,
        path: Path,
        device: Device,
        difference: Callable[[CompiledModel | BoardModel], Difference],
    ) -> None:
        self.path = path
        self._device, self._difference = device, difference
        self._last: tuple[BuiltModel, Difference] | None = None

    def difference(self, built: BuiltModel) -> Difference:
        """Export a build, unless it is the last one, and compare its outputs."""
        if self._last is None or self._last[0] is not built:
            self._last = None
            # The library of another build may be in use.
            self.path.unlink(missing_ok=True)
            link = with_own_threads(self._device.fingerprint.threads, self._device.link)
            with tempfile.TemporaryDirectory(prefix="fewtune-") as scratch:
                objects = renamed(built.objects, Path(scratch))
                export_library(built.executable, self.path, link, objects)
            self._last = built, self._difference(self._device.load(self.path))
        return self._last[1]


def _left_out_by_import(directory: Path) -> dict[str, str]:
    """Default schedules, if the import left them out."""
    for line in ImportReport.read(directory).left_out:
        step, _, reason = line.partition(": ")
        if step == DEFAULTS:
            return {DEFAULTS: reason}
    return {}


def _first_plan(
    levels: Mapping[str, Level], rewrites: frozenset[str], left_out: Mapping[str, str]
) -> Plan:
    """The first plan to try; records what may be left out if native code crashes."""
    chosen = dict(levels)
    if TUNED in left_out:
        chosen = {name: max(level, Level.DEFAULT) for name, level in chosen.items()}
    if DEFAULTS in left_out:
        chosen = {
            name: level if level == Level.LOG else Level.UNSCHEDULED
            for name, level in chosen.items()
        }
    used = rewrites - left_out.keys()
    # One group at a time, so that no schedule is left out if a rewrite crashes.
    groups = (sorted(used), [TUNED], [DEFAULTS])
    optional = next((group for group in groups if group and not left_out.keys() & set(group)), [])
    at("TVM was compiling the library, or the library was running", optional=optional)
    return Plan(chosen, used)


def _rewrites(options: CompileOptions, target: tvm.target.Target) -> frozenset[str]:
    """The rewrites of the first plan."""
    in_place = options.in_place == "auto" and not has_own_device(target)
    return frozenset(each for each in REWRITES if in_place or each != IN_PLACE)


def _task_of(lowered: tvm.IRModule, tasks: list[Task]) -> dict[str, str]:
    """The task of every kernel, by name. A task has the name of the first of its equal kernels."""
    names = {task.info.workload: task.info.name for task in tasks}
    workloads = sorted(kernels(lowered).items())
    return {kernel: names[workload] for kernel, workload in workloads if workload in names}


def verify(library: Path, import_directory: Path, target: tvm.target.Target) -> Difference:
    """Compare a library's outputs with onnxruntime's, for all inputs that the import drew.

    Parameters
    ----------
    library : Path
    import_directory : Path
        Folder of the imported model.
    target : Target
    """
    return _difference_of(import_directory)(CompiledModel(library, target))


def _difference_of(
    import_directory: Path, allowance: float = 1.0
) -> Callable[[CompiledModel | BoardModel], Difference]:
    """A function that compares a model's outputs with onnxruntime's, which are read once."""
    references = [
        (each.function, Reference.read(shape_folder(import_directory, each.function)), each.inputs)
        for each in ImportReport.read(import_directory).all_functions()
    ]

    def difference(compiled: CompiledModel | BoardModel) -> Difference:
        worst = Difference()
        for function, reference, specs in references:
            order = [spec.name for spec in specs]
            found = reference.check_library(compiled.at(function), order, allowance)
            if found.text and len(references) > 1:
                shapes = ", ".join(f"{spec.name} {spec.shape}" for spec in specs)
                found = replace(found, text=f"{found.text} (at the shape {shapes})")
            worst = worst.worse(found)
        return worst

    return difference

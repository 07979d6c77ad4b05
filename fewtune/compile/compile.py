"""Compiles a model: applies the tuning log, builds, verifies and exports the library."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

import fewtune
from fewtune.artifacts import (
    CompileReport,
    Fingerprint,
    ImportReport,
    LeftOut,
    ReplacedSchedule,
    TensorSpec,
)
from fewtune.compile.in_place import concatenations, write_in_place
from fewtune.compile.other_shapes import serve_other_shapes
from fewtune.compile.schedules import DEFAULTS, TUNED, KernelSchedules, Level, by_default
from fewtune.deploy.note import Function, Note, Tensor, tail
from fewtune.errors import VerificationError
from fewtune.machine.fingerprint import require_compiler
from fewtune.measure.device import Device, device_of
from fewtune.model.import_model import read_lowered, shape_folder
from fewtune.options import CompileOptions
from fewtune.process.apart import Job, Tell, at, in_step, run_apart
from fewtune.process.optional_steps import OptionalSteps, with_most_steps
from fewtune.runtime.executable import (
    CompiledModel,
    build_executable,
    export_library,
    with_own_threads,
)
from fewtune.runtime.kernel_store import LINKING, KernelStore, linking, renamed
from fewtune.runtime.target import architecture, has_own_device, needed_extensions, target_from_json
from fewtune.runtime.tvm import relax, tvm
from fewtune.schedule.prefetch import prefetched
from fewtune.storage.database import read_database
from fewtune.task import weight_layout
from fewtune.task.analysis import calls_fit
from fewtune.task.extract import Task, kernels, read_tasks
from fewtune.util.files import file_sha256
from fewtune.verify.comparison import Difference
from fewtune.verify.reference import Reference

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


LIBRARY = "model.so"
# Its name until its outputs are known to be right.
_CHECKED = "checked.so"
# A child process may have another working folder.
AbsolutePath = Annotated[Path, AfterValidator(Path.absolute)]


class CompileJob(Job):
    """What is compiled: the folders of a result's steps, and where the library goes.

    Attributes
    ----------
    imported : Path
        Of the imported model, with onnxruntime's outputs.
    tasks, fingerprint : Path
    shared : Path
        Of the tuning log of all tasks.
    options : CompileOptions
    directory : Path
        Gets ``model.so`` and ``compile.json``.
    model, strategy : str
        Names for the report.
    """

    imported: AbsolutePath
    tasks: AbsolutePath
    shared: AbsolutePath
    fingerprint: AbsolutePath
    options: CompileOptions
    directory: AbsolutePath
    model: str
    strategy: str

    def run(self) -> None:
        """Compile the model in this process."""
        compile_model(self)


def compile_apart(
    job: CompileJob,
    meanwhile: Callable[[], object] | None = None,
    tell: Tell | None = None,
) -> CompileReport:
    """Compile a model in a child process, as `compile_model` does.

    Rewrites and schedules are left out if they raise, or if native code crashes on them.

    Parameters
    ----------
    job : CompileJob
    meanwhile : callable, optional
        Called while the child compiles, mostly on one core.
    tell : callable, optional
        Is told which step is under way.

    Raises
    ------
    InputError
        If native code crashes whatever is left out.
    MachineError
        See `compile_model`; or if the system kills the compilation because memory ran out.
    VerificationError
        See `compile_model`.
    """
    run_apart(job, meanwhile, tell)
    return CompileReport.read(job.directory)


def compile_model(job: CompileJob) -> CompileReport:
    """Build the tuned library and compare its outputs with onnxruntime's.

    A rewrite that fails is left out. A kernel that does not compile, or computes wrong results, is
    scheduled by default. The report names both. Default schedules that the import left out are
    also left out here.

    Raises
    ------
    MachineError
        If there is no C compiler to link the library.
    VerificationError
        If outputs differ by more than allowed (`fewtune.verify`), whatever is left out.
    """
    require_compiler()
    started = time.perf_counter()
    fingerprint, imported = Fingerprint.read(job.fingerprint), ImportReport.read(job.imported)
    lowered, tasks = read_lowered(job.imported), read_tasks(job.tasks)
    database = read_database(job.shared)
    target, device = target_from_json(fingerprint.target), device_of(fingerprint)
    schedules = KernelSchedules(lowered, tasks, database, target)
    apart = serve_other_shapes(schedules, tasks, database, target, job.left_out.keys())
    path = job.directory / _CHECKED

    def attempt(steps: OptionalSteps) -> tuple[BuiltModel, Difference]:
        """A library without some steps; its code, once checked, is the code that is used."""
        at("compiling the library, or running it", optional=_suspects(steps))
        built = build(lowered, schedules, steps, target)
        _export(built, device, path)
        found = verify(device.load(path), job.imported, job.options.allowance)
        if not found.allowances <= 1:
            raise VerificationError(found.text)
        return built, found

    plain = list(map(by_default, schedules.levels))
    by_import = dict(line.split(": ", 1) for line in imported.left_out)
    known = {k: why for k, why in by_import.items() if k == DEFAULTS} | job.left_out
    is_copied = job.options.in_place == "never" or has_own_device(target)
    unasked = {IN_PLACE: ""} if is_copied else {}
    try:
        (built, found), failed = with_most_steps(
            attempt, [*plain, *schedules.levels, *REWRITES], unasked | known, quick=plain
        )
    except VerificationError as fault:
        raise VerificationError(
            f"{job.model} ({job.strategy}): of the tuned library, {fault}; untuned, its outputs "
            f"differed by {imported.allowances:.2g} allowances; nothing was exported"
        ) from fault
    seal(path, job.model, fingerprint, imported, found)
    path.rename(job.directory / LIBRARY)
    reasons = known | failed | {f"one layout of {kernel}": why for kernel, why in apart.items()}
    report = _report(job, _task_of(lowered, tasks), schedules, built, found, reasons)
    report = report.model_copy(update={"compile_s": round(time.perf_counter() - started, 3)})
    report.write(job.directory)
    return report


def _suspects(steps: OptionalSteps) -> list[str]:
    """What is left out if native code crashes: a group, so that rewrites cost no schedule."""
    groups = ([each for each in REWRITES if steps.uses(each)], [TUNED], [DEFAULTS])
    return next((group for group in groups if group and all(map(steps.uses, group))), [])


def _export(built: BuiltModel, device: Device, path: Path) -> None:
    # The library of another build may be in use.
    path.unlink(missing_ok=True)
    link = with_own_threads(device.fingerprint.threads, device.link)
    with tempfile.TemporaryDirectory(prefix="fewtune-") as scratch:
        export_library(built.executable, path, link, renamed(built.objects, Path(scratch)))


def _report(
    job: CompileJob,
    task_of: Mapping[str, str],
    schedules: KernelSchedules,
    built: BuiltModel,
    found: Difference,
    reasons: Mapping[str, str],
) -> CompileReport:
    """The report; ``reasons`` are those of optional steps that are left out."""
    levels, counts = built.levels, Counter(built.levels.values())
    in_place: Counter[str] = Counter()
    for kernel, count in built.left_out.items():
        in_place[task_of[kernel]] += count
    lost = {each: f"its record does not apply: {why}" for each, why in schedules.failed.items()}
    lost |= {each: reasons[each] for each in levels if each in reasons}
    of_kernels = {*levels, *map(by_default, levels)}
    return CompileReport(
        model=job.model,
        strategy=job.strategy,
        library=LIBRARY,
        scheduled_from_log=counts[Level.LOG],
        scheduled_by_default=counts[Level.DEFAULT] + counts[Level.PLAIN_DEFAULT],
        unscheduled=sorted(name for name in levels if levels[name] == Level.UNSCHEDULED),
        in_place=dict(sorted(in_place.items())),
        left_out=[
            LeftOut(what=what, reason=reason)
            for what, reason in reasons.items()
            if what not in of_kernels
        ],
        replaced=[
            ReplacedSchedule(kernel=each, schedule=levels[each].text, reason=reason)
            for each, reason in sorted(lost.items())
        ],
        other_names={kernel: task for kernel, task in task_of.items() if kernel != task},
        allowances=found.allowances,
        max_error=found.max_error,
        max_relative_error=found.max_relative_error,
        compile_s=0.0,
    )


def _task_of(lowered: tvm.IRModule, tasks: list[Task]) -> dict[str, str]:
    """The task of every kernel, by name. A task has the name of the first of its equal kernels."""
    names = {task.info.workload: task.info.name for task in tasks}
    workloads = sorted(kernels(lowered).items())
    return {kernel: names[workload] for kernel, workload in workloads if workload in names}


def seal(
    library: Path, model: str, fingerprint: Fingerprint, imported: ImportReport, found: Difference
) -> None:
    """Add the note to a library of a model, made for a machine, that was verified."""
    target = target_from_json(fingerprint.target)
    note = Note(
        sha256=file_sha256(library),
        model=model,
        model_sha256=imported.source_sha256,
        functions=tuple(
            Function(
                each.regime or each.function,
                each.function,
                _tensors(each.inputs),
                _tensors(each.outputs),
            )
            for each in imported.all_functions()
        ),
        paddable=tuple(imported.paddable),
        limits=imported.limits,
        target=fingerprint.target,
        architecture=architecture(target),
        extensions=tuple(needed_extensions(target)),
        threads=fingerprint.threads,
        versions={
            "fewtune": fewtune.__version__,
            "tvm": tvm.__version__,
            "onnxruntime": fingerprint.versions.get("onnxruntime", "unknown"),
        },
        verified={
            "draws": found.draws,
            "allowances": found.allowances,
            "max_error": found.max_error,
            "max_relative_error": found.max_relative_error,
        },
    )
    with library.open("ab") as stream:
        stream.write(tail(note))


def _tensors(specs: list[TensorSpec]) -> tuple[Tensor, ...]:
    return tuple(Tensor(each.name, each.dtype, tuple(each.shape)) for each in specs)


def verify(compiled: CompiledModel, import_directory: Path, allowance: float = 1.0) -> Difference:
    """Compare a library's outputs with onnxruntime's, for all inputs that the import drew."""
    worst = Difference()
    functions = ImportReport.read(import_directory).all_functions()
    for each in functions:
        reference = Reference.read(shape_folder(import_directory, each.function))
        order = [spec.name for spec in each.inputs]
        found = reference.check_library(compiled.at(each.function), order, allowance)
        if found.text and len(functions) > 1:
            shapes = ", ".join(f"{spec.name} {spec.shape}" for spec in each.inputs)
            found = replace(found, text=f"{found.text} (at the shape {shapes})")
        worst = worst.worse(found)
    return worst

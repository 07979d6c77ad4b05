"""Imports ONNX models as fused Relax kernels, and checks their outputs before tuning."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
from pydantic import AfterValidator

from fewtune.artifacts import (
    MAIN,
    ImportReport,
    ShapeFunction,
    TensorSpec,
    text_sha256,
)
from fewtune.errors import FewtuneError, InputError, VerificationError, last_line
from fewtune.model.converters.recurrent import is_recurrence
from fewtune.model.lower import (
    NHWC,
    STEPS,
    Lowered,
    UnsupportedError,
    checking_target,
    lower,
    lower_checked,
)
from fewtune.model.one_module import one_module
from fewtune.model.registration import ModelSource
from fewtune.model.source import LoadedModel, load_registered, paddable_dimensions
from fewtune.model.stored import LOWERED, WEIGHTS, read_stored, write_stored
from fewtune.onnx_graph import simplify as prepare
from fewtune.onnx_graph.bind import padding_notes
from fewtune.onnx_graph.checks import can_show_fault, check_finite
from fewtune.onnx_graph.external_data import LightModel, light, save
from fewtune.onnx_graph.graph import parameter_count
from fewtune.options import ImportOptions
from fewtune.process.apart import Job, Tell, at, run_apart, run_each_apart
from fewtune.process.contexts import give_back_memory
from fewtune.process.optional_steps import OptionalSteps
from fewtune.runtime.executable import CompiledModel, build_executable
from fewtune.runtime.target import target_from_json
from fewtune.runtime.tvm import set_threads, tvm, usable_cores
from fewtune.task.analysis import call_counts
from fewtune.util.asked import asked
from fewtune.util.files import canonical_json
from fewtune.verify.comparison import Difference
from fewtune.verify.draws import GIVEN, drawn_inputs, index_limits, rare_inputs
from fewtune.verify.intermediate import IntermediateValues
from fewtune.verify.locate import locate
from fewtune.verify.make_reference import make_reference
from fewtune.verify.reference import Draw, Reference
from fewtune.verify.taps import check_taps
from fewtune.verify.values import tensor_specs

REFERENCE = "model.onnx"
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Imported:
    """A model that was imported, and verified untuned.

    Attributes
    ----------
    report : ImportReport
    lowered : IRModule
        Fused kernels without schedules.
    bound : LightModel
        The model with its dynamic dimensions bound.
    reference : Reference
        The outputs and intermediate values that onnxruntime computes.
    """

    report: ImportReport
    lowered: tvm.IRModule
    bound: LightModel
    reference: Reference

    def write(self, directory: Path) -> None:
        """Write everything into ``directory``.

        Written are: ``model.onnx``, the model with its dynamic dimensions bound, for onnxruntime;
        the outputs that onnxruntime computes (`fewtune.verify.reference`); the lowered Relax
        module; the report.
        """
        directory.mkdir(parents=True, exist_ok=True)
        save(self.bound.whole(), directory / REFERENCE)
        self.reference.write(directory)
        _write(self.report, self.lowered, directory)


def _write(report: ImportReport, module: tvm.IRModule, directory: Path) -> None:
    digest = write_stored(module, directory)
    report.model_copy(update={"lowered_sha256": digest}).write(directory)


def shape_folder(directory: Path, function: str) -> Path:
    """Where an import keeps a shape's model and onnxruntime's outputs."""
    return directory if function == MAIN else directory / "shapes" / function


class ImportJob(Job):
    """The arguments of `imported_model`, and where to write; the target is JSON."""

    name: str
    models: Annotated[Path, AfterValidator(Path.absolute)]
    target: str
    threads: int
    options: ImportOptions
    directory: Annotated[Path, AfterValidator(Path.absolute)]
    shape: int = 0

    def run(self) -> None:
        """Import the model at one of its shapes in this process."""
        given = self.models, target_from_json(self.target), self.threads, self.options
        imported_model(self.name, *given, self.left_out, self.shape).write(self.directory)


def import_apart(job: ImportJob, tell: Tell | None = None) -> ImportReport:
    """Import a registered model in a child process, which TVM or onnxruntime may crash.

    An optional step is left out if it raises, or if native code crashes in it. ``tell`` is told
    which step is under way. Shapes but the largest are imported after it, one on each core; they
    have folders of their own.

    Raises
    ------
    InputError
        See `imported_model`; or if native code crashes without any optional step.
    MachineError
        If the system kills the import because memory ran out.
    VerificationError
        See `imported_model`.
    """
    run_apart(job, tell=tell)
    # What failed is left out of the other shapes, so that weights are laid out alike.
    known = dict(line.split(": ", 1) for line in ImportReport.read(job.directory).left_out)
    jobs = [
        job.model_copy(update={"shape": shape, "left_out": known, "directory": folder})
        for shape, folder in enumerate(_folders(job)[1:], start=1)
    ]
    for place in range(0, len(jobs), usable_cores()):
        run_each_apart(jobs[place : place + usable_cores()])
    if jobs:
        _join(job)
    return ImportReport.read(job.directory)


def imported_model(  # noqa: PLR0913 (all that an import depends on)
    name: str,
    models_directory: Path,
    target: tvm.target.Target,
    threads: int,
    options: ImportOptions,
    left_out: Mapping[str, str] | None = None,
    shape: int = 0,
) -> Imported:
    """Import a registered model, and verify it untuned.

    A crash of native code ends this process; `import_apart` survives it.

    Parameters
    ----------
    name : str
    models_directory : Path
    target : Target
    threads : int
    options : ImportOptions
    left_out : mapping, optional
        Optional steps known to fail on this model, with the reason.
    shape : int
        The number of the shape, from 0, which is the largest.

    Raises
    ------
    InputError
        If the model cannot be used as registered, or an operator cannot be imported.
    VerificationError
        If outputs of the untuned module differ by more than allowed (`fewtune.verify`). The message
        names the first operator whose outputs do.
    """
    # A board may have more threads than there are cores here.
    threads = min(threads, usable_cores())
    set_threads(threads)
    at("reading the model's file")
    # Weights are in memory once: nothing here keeps those of the file.
    loaded = [load_registered(models_directory, name, shape)]
    text = loaded[0].source.text
    try:
        return _imported(loaded.pop(), target, threads, options, left_out)
    except FewtuneError as fault:
        if shape:
            fault.args = (f"at the shape {text}: {fault}",)
        raise


def _folders(job: ImportJob) -> list[Path]:
    """The folder of each shape, the largest first."""
    others = enumerate(ModelSource.read(job.models, job.name).further, start=1)
    return [job.directory, *(shape_folder(job.directory, f"{MAIN}_{n}") for n, _ in others)]


def _join(job: ImportJob) -> None:
    """Make one import of those of all shapes."""
    folders, loaded = _folders(job), load_registered(job.models, job.name)
    sources = ModelSource.read(job.models, job.name).one_by_one()
    lowered, names = one_module([read_lowered(folder) for folder in folders])
    reports = [ImportReport.read(folder) for folder in folders]
    for folder, renamed in zip(folders, names, strict=True):
        reference = Reference.read(folder)
        for place, tap in enumerate(reference.taps):
            site = tap.site._replace(kernel=renamed[tap.site.kernel])
            reference.taps[place] = tap._replace(site=site)
        reference.write(folder)
        for name in (LOWERED, WEIGHTS):
            (folder / name).unlink()
    functions = [
        ShapeFunction(
            function=MAIN if folder == job.directory else folder.name,
            regime=source.regime,
            inputs=report.inputs,
            outputs=report.outputs,
        )
        for folder, report, source in zip(folders, reports, sources, strict=True)
    ]
    # Each shape's indices are safe in every other.
    limits: dict[str, tuple[int, int]] = {}
    for name, (low, high) in (item for each in reports for item in each.limits.items()):
        least, most = limits.get(name, (low, high))
        limits[name] = max(least, low), min(most, high)
    report = reports[0].model_copy(
        update={
            "binding": _digest([each.binding for each in reports]),
            "functions": functions,
            "paddable": paddable_dimensions(loaded.model, functions, loaded.source.paddable),
            "limits": limits,
            "allowances": max(each.allowances for each in reports),
            "max_error": max(each.max_error for each in reports),
            "max_relative_error": max(each.max_relative_error for each in reports),
            "left_out": list(dict.fromkeys(line for each in reports for line in each.left_out)),
            "notes": list(dict.fromkeys(line for each in reports for line in each.notes)),
        }
    )
    _write(report, lowered, job.directory)


def _imported(
    loaded: LoadedModel,
    target: tvm.target.Target,
    threads: int,
    options: ImportOptions,
    left_out: Mapping[str, str] | None,
) -> Imported:
    """Import a model at one shape."""
    name, bound = loaded.name, loaded.bound()
    loaded = replace(loaded, model=onnx.ModelProto())
    give_back_memory()
    check_finite(bound.model)
    forgiving = OptionalSteps(forgiving=True)
    layered = prepare.with_light_layers(bound, forgiving)
    # The values of each step of a recurrent layer are compared, and rounded.
    simplified = light(prepare.unrolled(layered.model))
    if not can_show_fault(simplified.model):
        raise InputError(
            f"{name}: its weights are all one constant, so no check of its outputs can show "
            "a fault; give a model with real or random weights"
        )
    presimplified = layered if forgiving.fault is None else None
    comparison = _Comparison(loaded, bound, simplified, threads, options)
    for each in comparison.outputs:
        if 0 in each.shape:
            raise InputError(f"{name}: output {each.name!r} has no elements: take it out")
    try:
        made = lower_checked(bound, target, options, comparison.check, left_out, presimplified)
    except VerificationError as fault:
        raise VerificationError(
            f"{name}: imported without tuning, {fault}; first to differ: "
            f"{comparison.first_to_differ(target)}"
        ) from fault
    except UnsupportedError as fault:
        raise UnsupportedError(f"{name}: {fault}", fault.unsupported) from fault
    except InputError as fault:
        raise InputError(f"{name}: {fault}") from fault
    for step, reason in made.left_out.items():
        _LOG.info("%s: %s is left out: %s", name, step, reason)
    report = _report(loaded, bound, made, comparison)
    return Imported(report, made.module, bound, comparison.reference)


class _Comparison:
    """Compares a compiled model with onnxruntime: its outputs, and values inside it."""

    def __init__(
        self,
        loaded: LoadedModel,
        bound: LightModel,
        simplified: LightModel,
        threads: int,
        options: ImportOptions,
    ) -> None:
        self._simplified = simplified
        self._threads, self.options = threads, options
        self._last: CompiledModel | None = None
        self.inputs, self.outputs = tensor_specs(bound.model)
        self._order = [spec.name for spec in self.inputs]
        self.limits = index_limits(simplified.model)
        draws = drawn_inputs(simplified.model, self.inputs, options.seed)
        if loaded.samples is not None:
            draws.insert(0, Draw(GIVEN, {name: loaded.samples[name] for name in self._order}))
        at("running the model in onnxruntime")
        given = bound, simplified
        rare = rare_inputs(simplified.model, self.inputs, draws[0])
        self.reference = make_reference(*given, self.outputs, draws, threads, options.seed, rare)
        self._inside = IntermediateValues(*given, self.reference.feeds, threads, options.seed)

    @property
    def notes(self) -> list[str]:
        """Notes for the user."""
        at("running the kernels on rare inputs")
        rare = self.reference.rare_differences(self._run)
        return [
            *self.reference.notes,
            *([self._inside.note] if self._inside.note else []),
            *(f"with {name}, {text}: nothing is refused for it" for name, text in rare.items()),
        ]

    def check(self, compiled: CompiledModel) -> Difference:
        """The largest difference; raises `VerificationError` if it is too large."""
        self._last = compiled
        found = self.reference.check(self._run, self.options.allowance)
        if not found.allowances <= 1:
            raise VerificationError(found.text)
        self.reference.taps[:] = self._inside.taps(compiled, self._order)
        within = check_taps(compiled, self._ordered(self.reference.feeds), self.reference.taps)
        if not within.allowances <= 1:
            raise VerificationError(within.text)
        return found.worse(within)

    def first_to_differ(self, target: tvm.target.Target) -> str:
        """A line about the first operator whose outputs differ."""
        plain = OptionalSteps(dict.fromkeys(STEPS, ""))
        here = checking_target(target)

        def outputs_of(opened: LightModel, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
            lowered = lower(opened, target, "NCHW", steps=plain)
            built = CompiledModel(build_executable(lowered, here), here)
            return built.outputs(self._ordered(feeds))

        try:
            at("searching for the operator that differs")
            feeds = self.reference.worst_draw(self._run).feeds
            given = self._simplified, feeds
            return locate(*given, outputs_of, self._threads, self.options.seed)
        except Exception as fault:  # noqa: BLE001 (a part of a model cannot always be compiled)
            return f"the operator that differs could not be found ({last_line(fault)})"

    def _run(self, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        assert self._last is not None
        return self._last.outputs(self._ordered(feeds))

    def _ordered(self, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        return [feeds[name] for name in self._order]


def _report(
    loaded: LoadedModel, bound: LightModel, made: Lowered[Difference], comparison: _Comparison
) -> ImportReport:
    counts = call_counts(made.module)
    notes = [*padding_notes(bound.model), *comparison.notes]
    if made.winograd.count and comparison.reference.rare:
        notes.append(
            f"Winograd's transforms compute {made.winograd.count} convolutions: an infinite "
            "or huge element spreads over its tile (direct sums: `import_model.winograd: never`, "
            f"or {asked('inputs')} with such elements)"
        )
    layers = sum(count for kernel, count in counts.items() if is_recurrence(kernel))
    if layers:
        notes.append(
            f"recurrent layers whose steps are all computed by one kernel: {layers}; that kernel "
            "has a fixed schedule, so it is no task, and is in no table of tasks"
        )
    left_out = [f"{step}: {reason}" for step, reason in made.left_out.items()]
    if made.winograd.reduced:
        left_out.append(
            f"the fastest transform of {made.winograd.reduced} convolutions: with it the library "
            f"exceeds {comparison.options.most_growth:g} times the model (compile.most_growth)"
        )
    is_transpose = re.compile(r"(fused_)?transpose").match
    return ImportReport(
        model=loaded.name,
        source=loaded.source.description,
        source_sha256=loaded.sha256,
        binding=_binding(comparison.inputs, comparison.outputs, loaded.source.constants),
        opset=loaded.opset,
        inputs=comparison.inputs,
        outputs=comparison.outputs,
        limits=comparison.limits,
        parameters=parameter_count(bound.model),
        nodes=len(bound.model.graph.node),
        nodes_simplified=len(made.simplified.model.graph.node),
        layout=made.layout,
        layout_note="as asked" if made.layout == comparison.options.layout else made.left_out[NHWC],
        winograd=made.winograd.count,
        padded=made.padding.count,
        left_out=left_out,
        transposes=sum(count for kernel, count in counts.items() if is_transpose(kernel)),
        allowances=made.found.allowances,
        max_error=made.found.max_error,
        max_relative_error=made.found.max_relative_error,
        notes=notes,
    )


def _binding(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], constants: Mapping[str, Any]
) -> str:
    """A digest of what the file leaves open: bound shapes and constant inputs."""
    shapes = [[each.model_dump() for each in specs] for specs in (inputs, outputs)]
    return _digest({"inputs": shapes[0], "outputs": shapes[1], "constants": dict(constants)})


def _digest(value: object) -> str:
    return text_sha256(canonical_json(value))[:12]


def read_lowered(directory: Path) -> tvm.IRModule:
    """Read the lowered module that `Imported.write` wrote.

    Raises
    ------
    InputError
        If it is missing or damaged.
    """
    return read_stored(directory, ImportReport.read(directory).lowered_sha256)

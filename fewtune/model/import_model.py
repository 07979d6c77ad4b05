"""From ONNX to lowered, fused Relax, checked against onnxruntime before anything is tuned."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, Literal, TypeVar

import numpy as np
import onnx
from pydantic import BaseModel, ConfigDict, Field

from fewtune.artifacts import ImportReport
from fewtune.errors import FewtuneError, InputError, VerificationError
from fewtune.model.lower import LOWERINGS, NHWC, PAD_FILTERS, PAD_MATMUL, WINOGRAD, lower
from fewtune.model.passes.choose_winograd import Chooser
from fewtune.model.passes.pad_filters import Padding
from fewtune.model.source import load_registered
from fewtune.model.unsupported import UnsupportedError, explain, unsupported_nodes
from fewtune.onnx_graph import simplify as prepare
from fewtune.onnx_graph.external_data import light
from fewtune.onnx_graph.halves import has_halves
from fewtune.onnx_graph.operators.vision.suppression import padding_notes
from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.executable import CompiledModel, build_executable
from fewtune.runtime.target import device_of, host_target, is_foreign
from fewtune.runtime.tvm import relax, set_threads, tvm, usable_cores
from fewtune.schedule.defaults.default import apply_default_schedules
from fewtune.task import weight_layout
from fewtune.task.calls import call_counts
from fewtune.util.apart import at
from fewtune.util.files import write_text
from fewtune.util.optional_steps import OptionalSteps, first_line, with_most_steps
from fewtune.verify.comparison import Difference
from fewtune.verify.draws import GIVEN, Draw, drawn_inputs
from fewtune.verify.inside import Inside
from fewtune.verify.locate import locate
from fewtune.verify.reference import make_reference
from fewtune.verify.session import tensor_specs
from fewtune.verify.taps import check_taps

Found = TypeVar("Found")

LOWERED = "lowered.json"
REFERENCE = "model.onnx"
_LOG = logging.getLogger(__name__)
_DEFAULT_SCHEDULES = "default_schedules"
# What an import can do without, in the order in which steps build upon each other.
STEPS = (*prepare.REWRITES, *LOWERINGS, _DEFAULT_SCHEDULES)


class ImportOptions(BaseModel):
    """How a model is imported."""

    model_config = ConfigDict(extra="forbid")

    layout: Literal["NHWC", "NCHW"] = Field(
        default="NHWC", description="layout of convolutions; NHWC falls back where it fails"
    )
    allowance: float = Field(
        default=1.0, gt=0, description="multiplies what rounding may move each output element"
    )
    winograd: Literal["auto", "never"] = Field(
        default="auto",
        description="auto: Winograd's transforms for the 3x3 convolutions that are expected to "
        "gain by them, on CPUs in NHWC; never: every convolution summed directly",
    )
    pad_filters: Literal["auto", "never"] = Field(
        default="auto",
        description="auto: filters of zeros beside those that fill no vector, rows and columns "
        "beside those of products that fill no tile, where that is expected to gain, on CPUs in "
        "NHWC; never: extents as given",
    )
    seed: int = Field(default=0, ge=0, description="seed of the random inputs of the check")


@dataclass(frozen=True)
class Lowered(Generic[Found]):
    """A model that was lowered, built with default schedules, and found right.

    Attributes
    ----------
    module : IRModule
        Fused kernels without schedules.
    executable : VMExecutable
        The same with default schedules.
    found
        What the check returned.
    simplified : ModelProto
    layout : {"NHWC", "NCHW"}
    winograd, padded : int
        Convolutions by Winograd's transforms; convolutions and products with padded extents.
    saved_flops : int
    left_out : dict of str
        Optional steps that failed on this model, with the reason.
    """

    module: tvm.IRModule
    executable: relax.VMExecutable
    found: Found
    simplified: onnx.ModelProto
    layout: Literal["NHWC", "NCHW"]
    winograd: int
    padded: int
    saved_flops: int
    left_out: dict[str, str]


def lower_checked(
    bound: onnx.ModelProto,
    target: tvm.target.Target,
    options: ImportOptions,
    check: Callable[[CompiledModel], Found],
    left_out: Mapping[str, str] | None = None,
    whole: onnx.ModelProto | None = None,
) -> Lowered[Found]:
    """Lower a model with every optional step that works on it.

    A step that raises, or with which the outputs are wrong, is left out. Without any, what is left
    is plain TVM.

    Parameters
    ----------
    bound : ModelProto
        From `fewtune.binding.bind.bind_shapes`.
    target : Target
    options : ImportOptions
    check : callable
        Runs the compiled model and says how far off it is; raises `VerificationError` where that is
        too much.
    left_out : mapping, optional
        Steps known to fail on this model, with the reason.
    whole : ModelProto, optional
        The model simplified by all steps, where none of them fails.

    Raises
    ------
    InputError
        If an operator cannot be imported.
    VerificationError
        If plain TVM's outputs are wrong.
    """
    is_cpu = str(target.kind.name) == "llvm"
    lanes = CpuTraits.of(target).lanes("float32") if is_cpu else 0
    here = checking_target(target)
    schedules: dict[int, tvm.tirx.PrimFunc | None] = {}

    def attempt(steps: OptionalSteps) -> Lowered[Found]:
        at("the graph was being simplified")
        if whole is not None and all(map(steps.uses, prepare.REWRITES)):
            simplified = whole
        else:
            simplified = prepare.simplify(bound, steps)
        layout: Literal["NHWC", "NCHW"] = "NHWC" if steps.uses(NHWC) else "NCHW"
        # Transforms have schedules only on CPUs, and only there filters fill vectors.
        may_change = is_cpu and layout == "NHWC"
        chooser = Chooser() if may_change and steps.uses(WINOGRAD) else None
        pads = steps.uses(PAD_FILTERS) or steps.uses(PAD_MATMUL)
        padding = Padding(lanes) if may_change and pads else None
        lowered = lower(simplified, target, layout, chooser, padding, steps)
        scheduled = lowered
        if steps.uses(_DEFAULT_SCHEDULES):
            with steps.step(_DEFAULT_SCHEDULES):
                at("TVM was giving kernels their default schedules")
                names = list(call_counts(lowered))
                scheduled = apply_default_schedules(lowered, names, here, schedules)
                scheduled = weight_layout.fold(scheduled) if is_cpu else scheduled
        at("TVM was compiling the kernels")
        executable = build_executable(scheduled, here)
        at("the compiled kernels were running")
        found = check(CompiledModel(executable, here))
        chosen = chooser.chosen if chooser is not None else []
        padded = padding.chosen if padding is not None else []
        saved = chooser.saved_flops if chooser is not None else 0
        saved -= padding.added_flops if padding is not None else 0
        return Lowered(
            lowered, executable, found, simplified, layout, len(chosen), len(padded), saved, {}
        )

    try:
        known = dict(left_out or {})
        if not is_cpu and has_halves(bound):
            known[prepare.HALVES_IN_FLOATS] = "a GPU computes in half precision"
        made, failed = with_most_steps(attempt, STEPS, _unasked(options) | known)
    except FewtuneError:
        raise
    except Exception as fault:
        nodes = unsupported_nodes(
            prepare.simplify(bound), lambda alone: lower(alone, target, "NCHW"), first_line
        )
        if nodes:
            raise UnsupportedError(explain(nodes), nodes) from fault
        raise InputError(_unsupported(bound, first_line(fault))) from fault
    return replace(made, left_out=known | failed)


def checking_target(target: tvm.target.Target) -> tvm.target.Target:
    """What a model is compiled for to be checked here: its target, where that can run here."""
    runs_here = not is_foreign(target) and device_of(target).exist
    return target if runs_here else host_target(usable_cores())


def _unsupported(model: onnx.ModelProto, reason: str) -> str:
    """Which operator the reason mentions, or all operators where it mentions none."""
    operators = prepare.onnx_operators(model)
    mentioned = [kind for kind in operators if re.search(rf"\b{kind}\b", reason, re.IGNORECASE)]
    named = ", ".join(f"{kind} (node {operators[kind]!r})" for kind in mentioned or operators)
    place = "at operator" if mentioned or len(operators) == 1 else "at one of the operators"
    return f"TVM cannot compile this model, {place} {named}: {reason}"


def _unasked(options: ImportOptions) -> dict[str, str]:
    """Steps that the options leave out, and what builds upon them."""
    found = {}
    if options.layout == "NCHW":
        found[NHWC] = "import_model.layout is NCHW"
    if options.winograd == "never":
        found[WINOGRAD] = "import_model.winograd is never"
    if options.pad_filters == "never":
        found |= dict.fromkeys((PAD_FILTERS, PAD_MATMUL), "import_model.pad_filters is never")
    return found


def import_model(
    name: str,
    models_directory: Path,
    target: tvm.target.Target,
    threads: int,
    options: ImportOptions,
    directory: Path,
    say: Callable[[str], None] = _LOG.info,
    left_out: Mapping[str, str] | None = None,
) -> ImportReport:
    """Import a registered model, verify it untuned, and write it into ``directory``.

    Writes ``model.onnx`` (as given, dynamic dimensions bound: onnxruntime's side), what
    onnxruntime computes with it (`fewtune.verify.reference`), the lowered Relax module and the
    report.

    A crash of native code ends this process; `fewtune.model.import_apart` survives it.

    Parameters
    ----------
    name : str
    models_directory : Path
    target : Target
    threads : int
    options : ImportOptions
    directory : Path
    say : callable
        Told how far the import is.
    left_out : mapping, optional
        Optional steps known to fail on this model, with the reason.

    Raises
    ------
    InputError
        If the model cannot be used as registered, or an operator cannot be imported.
    VerificationError
        If outputs of the untuned module leave their allowance (`fewtune.verify`); the operator
        that is the first to do so is named.
    """
    # Of a board's threads, no more than there are cores here.
    threads = min(threads, usable_cores())
    set_threads(threads)
    at("the model's file was being read")
    loaded = load_registered(models_directory, name)
    bound = loaded.bound()
    prepare.check_finite(bound)
    reference_path = directory / REFERENCE
    prepare.save(bound, reference_path)
    forgiving = OptionalSteps(forgiving=True)
    simplified = prepare.simplify(bound, forgiving)
    notes = padding_notes(bound)
    if not prepare.can_show_fault(simplified):
        raise InputError(
            f"{name}: its weights are all one constant, so no check of its outputs can show a "
            "fault; give a model with real or random weights"
        )
    inputs, outputs = tensor_specs(bound)
    draws = drawn_inputs(simplified, inputs, options.seed)
    if loaded.samples is not None:
        samples = loaded.samples
        draws.insert(0, Draw(GIVEN, {spec.name: samples[spec.name] for spec in inputs}))
    at("onnxruntime was loading or running the model")
    shared, shared_simplified = light(bound), light(simplified)
    reference = make_reference(shared, shared_simplified, outputs, draws, threads, options.seed)
    notes += reference.notes
    order = [spec.name for spec in inputs]
    inside = Inside(shared, shared_simplified, reference.feeds, threads, options.seed)
    last: CompiledModel | None = None

    def run(feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        assert last is not None
        return last.outputs([feeds[each] for each in order])

    def check(compiled: CompiledModel) -> Difference:
        nonlocal last
        last = compiled
        say(f"{name}: lowered, running it by default schedules beside onnxruntime")
        found = reference.check(run, options.allowance)
        if not found.allowances <= 1:
            raise VerificationError(found.text)
        reference.taps[:] = inside.taps(compiled, order)
        within = check_taps(compiled, [reference.feeds[n] for n in order], reference.taps)
        if not within.allowances <= 1:
            raise VerificationError(within.text)
        return found.worse(within)

    def culprit() -> str:
        """The operator that is the first to be wrong, as far as it can be told."""
        plain = OptionalSteps(dict.fromkeys(STEPS, ""))
        here = checking_target(target)

        def opened_outputs(
            opened: onnx.ModelProto, feeds: dict[str, np.ndarray]
        ) -> list[np.ndarray]:
            lowered = lower(opened, target, "NCHW", steps=plain)
            return CompiledModel(build_executable(lowered, here), here).outputs(
                [feeds[each] for each in order]
            )

        try:
            at("the operator that differs was being searched")
            feeds = reference.worst_draw(run).feeds
            return locate(simplified, feeds, opened_outputs, threads, options.seed)
        except Exception as fault:  # noqa: BLE001 (what is asked for cannot always be compiled)
            return f"no operator could be told apart ({first_line(fault)})"

    try:
        whole = simplified if forgiving.fault is None else None
        made = lower_checked(bound, target, options, check, left_out, whole)
    except VerificationError as fault:
        raise VerificationError(
            f"{name}: imported without tuning, {fault}; first to differ: {culprit()}"
        ) from fault
    except UnsupportedError as fault:
        raise UnsupportedError(f"{name}: {fault}", fault.unsupported) from fault
    except InputError as fault:
        raise InputError(f"{name}: {fault}") from fault
    for step, reason in made.left_out.items():
        say(f"{name}: {step} is left out: {reason}")
    lowered, found = made.module, made.found
    notes += [inside.note] if inside.note else []
    reference.write(directory)
    write_text(directory / LOWERED, tvm.ir.save_json(lowered))
    report = ImportReport(
        model=name,
        source=loaded.description,
        source_sha256=loaded.sha256,
        opset=loaded.opset,
        inputs=inputs,
        outputs=outputs,
        parameters=prepare.parameter_count(bound),
        nodes=len(bound.graph.node),
        nodes_simplified=len(made.simplified.graph.node),
        layout=made.layout,
        layout_note="as asked" if made.layout == options.layout else made.left_out[NHWC],
        winograd=made.winograd,
        padded=made.padded,
        saved_flops=made.saved_flops,
        left_out=[f"{step}: {reason}" for step, reason in made.left_out.items()],
        transposes=sum(
            count
            for kernel, count in call_counts(lowered).items()
            if re.match(r"(fused_)?transpose", kernel)
        ),
        allowances=found.allowances,
        max_error=found.max_error,
        max_relative_error=found.max_relative_error,
        notes=notes,
    )
    report.write(directory)
    return report


def read_lowered(directory: Path) -> tvm.IRModule:
    """Read the lowered module that `import_model` wrote.

    Raises
    ------
    InputError
        If it is missing or damaged.
    """
    path = directory / LOWERED
    try:
        text = path.read_text()
        json.loads(text)
        return tvm.ir.load_json(text)
    except Exception as fault:  # noqa: BLE001 (TVM says so in many ways)
        told = str(fault).strip().splitlines() or [type(fault).__name__]
        raise InputError(
            f"{path} cannot be read ({told[-1][:200]}): run stage import_model again"
        ) from None

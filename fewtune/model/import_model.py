"""From ONNX to lowered, fused Relax, checked against onnxruntime before anything is tuned."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import onnx
from pydantic import BaseModel, ConfigDict, Field

from fewtune.artifacts import ImportReport
from fewtune.errors import InputError, VerificationError
from fewtune.model.passes import pad_matmul, resize
from fewtune.model.passes.choose_winograd import Chooser, legalize
from fewtune.model.passes.converters import layout_friendly
from fewtune.model.passes.pad_filters import Padded, Padding
from fewtune.model.passes.pad_softmax import padded_softmax
from fewtune.model.passes.permutes import without_idle_permutes
from fewtune.model.passes.winograd import Convolution
from fewtune.model.source import load_registered
from fewtune.onnx_graph import simplify as prepare
from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.executable import CompiledModel, build_executable, module_pass
from fewtune.runtime.tvm import relax, set_threads, tvm
from fewtune.task import weight_layout
from fewtune.task.calls import call_counts
from fewtune.util.files import write_text
from fewtune.verify.comparison import Difference
from fewtune.verify.draws import INPUTS_FILE, drawn_inputs, given_inputs
from fewtune.verify.locate import locate
from fewtune.verify.reference import make_reference
from fewtune.verify.session import tensor_specs

LOWERED = "lowered.json"
REFERENCE = "model.onnx"
_LOG = logging.getLogger(__name__)
# Transposed convolutions have no NHWC form in TVM 0.27: naming their own layout keeps them out.
_NHWC = {
    "relax.nn.conv2d": ["NHWC", "HWIO"],
    "relax.nn.conv2d_transpose": ["NCHW", "IOHW"],
}


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


class _Plan(NamedTuple):
    """One way to lower a model."""

    layout: Literal["NHWC", "NCHW"]
    chooser: Chooser | None = None
    padding: Padding | None = None

    @property
    def transforms(self) -> list[tuple[Convolution, int]]:
        return self.chooser.chosen if self.chooser is not None else []

    @property
    def padded(self) -> list[Padded]:
        return self.padding.chosen if self.padding is not None else []

    @property
    def saved_flops(self) -> int:
        saved = self.chooser.saved_flops if self.chooser is not None else 0
        return saved - (self.padding.added_flops if self.padding is not None else 0)

    @property
    def text(self) -> str:
        extras = ["Winograd's transforms"] if self.transforms else []
        extras += ["padded extents"] if self.padded else []
        return f"{self.layout} with {' and '.join(extras)}" if extras else self.layout


def lower(
    model: onnx.ModelProto,
    target: tvm.target.Target,
    layout: Literal["NHWC", "NCHW"],
    tile_of: Callable[[Convolution], int] | None = None,
    padding: Padding | None = None,
) -> tvm.IRModule:
    """Import an ONNX graph into Relax and lower it to fused kernels.

    Parameters
    ----------
    model : onnx.ModelProto
        Static shapes, simplified (`fewtune.onnx_graph.simplify.simplify`).
    target : tvm.target.Target
    layout : {"NHWC", "NCHW"}
        Layout that 2-D convolutions run in.
    tile_of : callable, optional
        The tile of a 3x3 convolution that Winograd's transforms are to serve, 0 for none
        (`fewtune.model.passes.choose_winograd.legalize`).
    padding : Padding, optional
        Pads the filters of convolutions in NHWC and the extents of products, and notes which.

    Returns
    -------
    lowered : tvm.IRModule
        ``main`` calls fused TensorIR kernels; weights are constants inside it.
    """
    from tvm.relax.frontend.onnx import from_onnx

    is_cpu = str(target.kind.name) == "llvm"
    traits = CpuTraits.of(target) if is_cpu else None
    others = padded_softmax(traits.lanes("float32")) if traits is not None else {}
    resize.register()
    with layout_friendly():
        module = from_onnx(model, keep_params_in_input=False)
    convolution = tvm.ir.Op.get("relax.nn.conv2d").get_attr("FLegalize")
    if padding is not None:
        convolution = padding.legalizer(convolution)
        if traits is not None:
            others |= pad_matmul.legalizer(padding, traits)
    if tile_of is not None:
        convolution = legalize(tile_of, convolution, traits)
    # The conversion takes a time that grows with the square of a graph: of an unrolled sequence of
    # thousands of kernels, minutes.
    is_convolutional = any(node.op_type == "Conv" for node in model.graph.node)
    convert = layout == "NHWC" and is_convolutional
    passes = [
        relax.transform.DecomposeOpsForInference(),
        relax.transform.CanonicalizeBindings(),
        *([relax.transform.ConvertLayout(_NHWC)] if convert else []),
        relax.transform.Normalize(),
        module_pass(without_idle_permutes),
        relax.transform.FoldConstant(),
        relax.backend.DispatchSortScan(),
        relax.transform.LegalizeOps({"relax.nn.conv2d": convolution, **others}),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FoldConstant(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
        relax.transform.DeadCodeElimination(),
    ]
    with target, tvm.transform.PassContext(opt_level=3):
        lowered = tvm.transform.Sequential(passes)(module)
    # Only MetaSchedule's rules for CPUs move weights.
    return weight_layout.mark(lowered) if is_cpu else lowered


def import_model(
    name: str,
    models_directory: Path,
    target: tvm.target.Target,
    threads: int,
    options: ImportOptions,
    directory: Path,
    say: Callable[[str], None] = _LOG.info,
) -> ImportReport:
    """Import a registered model, verify it untuned, and write it into ``directory``.

    Writes ``model.onnx`` (as given, dynamic dimensions bound: onnxruntime's side), what
    onnxruntime computes with it (`fewtune.verify.reference`), the lowered Relax module and the
    report.

    Raises
    ------
    InputError
        If the model cannot be used as registered, or an operator cannot be imported.
    VerificationError
        If outputs of the untuned module leave their allowance (`fewtune.verify`); the operator
        that is the first to do so is named.
    """
    set_threads(threads)
    loaded = load_registered(models_directory, name)
    bound = loaded.bound()
    prepare.check_finite(bound)
    reference_path = directory / REFERENCE
    prepare.save(bound, reference_path)
    simplified = prepare.simplify(bound)
    notes = []
    if not prepare.can_show_fault(simplified):
        raise InputError(
            f"{name}: its weights are all one constant, so no check of its outputs can show a "
            "fault; give a model with real or random weights"
        )
    inputs, outputs = tensor_specs(bound)
    draws = drawn_inputs(simplified, inputs, options.seed)
    given = models_directory / name / INPUTS_FILE
    if given.is_file():
        draws.insert(0, given_inputs(given, inputs))
    reference = make_reference(reference_path, simplified, outputs, draws, threads, options.seed)
    reference.write(directory)
    notes += reference.notes
    order = [spec.name for spec in inputs]

    def compiled(plan: _Plan, model: onnx.ModelProto) -> tuple[tvm.IRModule, CompiledModel]:
        lowered = lower(model, target, plan.layout, plan.chooser, plan.padding)
        return lowered, CompiledModel(build_executable(lowered, target), target)

    def culprit(plan: _Plan, run: Callable[[dict[str, np.ndarray]], list[np.ndarray]]) -> str:
        """The operator that is the first to be wrong, as far as it can be told."""
        try:
            return locate(
                simplified,
                reference.worst_draw(run).feeds,
                lambda opened, feeds: compiled(plan, opened)[1].outputs([feeds[n] for n in order]),
                threads,
                options.seed,
            )
        except Exception as fault:  # noqa: BLE001 (what is asked for cannot always be compiled)
            return f"no operator could be told apart ({first_line(fault)})"

    def attempt(plan: _Plan, is_last: bool) -> tuple[tvm.IRModule, Difference]:
        say(f"{name}: lowering as {plan.text}, to run it untuned beside onnxruntime")
        lowered, untuned = compiled(plan, simplified)

        def run(feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
            return untuned.outputs([feeds[spec.name] for spec in inputs])

        found = reference.check(run, options.allowance)
        if not found.allowances <= 1:
            named = f"; first to differ: {culprit(plan, run)}" if is_last else ""
            raise VerificationError(f"{found.text}{named}")
        return lowered, found

    plans = _plans(target, options)
    failures: list[str] = []
    while True:
        plan = plans.pop(0)
        try:
            lowered, found = attempt(plan, is_last=not plans)
            break
        except Exception as fault:  # noqa: BLE001 (the conversion fails in many ways, see FINDINGS)
            if not plan.transforms and not plan.padded:
                # The same without them is what has just failed.
                plans = [other for other in plans if other.layout != plan.layout]
            if not plans:
                raise _import_fault(name, bound, fault) from fault
            failures.append(f"{plan.text} failed: {first_line(fault)}")
            say(f"{name}: {failures[-1]}; trying {plans[0].layout}")
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
        nodes_simplified=len(simplified.graph.node),
        layout=plan.layout,
        layout_note="; ".join(failures) or "as asked",
        winograd=len(plan.transforms),
        padded=len(plan.padded),
        saved_flops=plan.saved_flops,
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


def _plans(target: tvm.target.Target, options: ImportOptions) -> list[_Plan]:
    """What to try, the fastest first; the last one is a model's last chance."""
    plans = [_Plan("NCHW")]
    if options.layout == "NHWC":
        plans.insert(0, _Plan("NHWC"))
        # Transforms have schedules only on CPUs, and only there filters fill vectors.
        if str(target.kind.name) == "llvm":
            lanes = CpuTraits.of(target).lanes("float32")
            if options.pad_filters == "auto":
                plans.insert(0, _Plan("NHWC", None, Padding(lanes)))
            if options.winograd == "auto":
                padding = Padding(lanes) if options.pad_filters == "auto" else None
                plans.insert(0, _Plan("NHWC", Chooser(), padding))
    return plans


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


def first_line(fault: BaseException) -> str:
    """The telling line of an exception: TVM puts its stack before the message."""
    lines = [line.strip() for line in str(fault).splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(("File ", "at ", "Stack trace"))]
    text = lines[-1] if lines else type(fault).__name__
    return text if len(text) <= 200 else text[:197] + "..."


def _import_fault(name: str, model: onnx.ModelProto, fault: Exception) -> Exception:
    """Say which operator stopped the import, where one did, or which outputs are wrong."""
    if isinstance(fault, VerificationError):
        return VerificationError(f"{name}: imported without tuning, {fault}")
    if isinstance(fault, InputError):
        return fault
    operators = prepare.onnx_operators(model)
    mentioned = [kind for kind in operators if re.search(rf"\b{re.escape(kind)}\b", str(fault))]
    if mentioned:
        named = ", ".join(f"{kind} (node {operators[kind]!r})" for kind in mentioned)
        return InputError(f"{name}: TVM cannot import operator {named}: {first_line(fault)}")
    return InputError(f"{name}: TVM cannot import this model: {first_line(fault)}")

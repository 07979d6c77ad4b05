"""Lower a model with every optional step that works on it, and check what it computes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Generic, Literal, TypeVar

import onnx

from fewtune.errors import FewtuneError, InputError
from fewtune.model.import_options import ImportOptions
from fewtune.model.lower import (
    BF16_PRODUCTS,
    LOWERINGS,
    NHWC,
    PAD_FILTERS,
    PAD_MATMUL,
    WINOGRAD,
    lower,
)
from fewtune.model.passes.choose_winograd import Chooser
from fewtune.model.passes.pad_filters import Padding
from fewtune.model.unsupported import UnsupportedError, explain, unsupported_nodes
from fewtune.onnx_graph import simplify as prepare
from fewtune.onnx_graph.float16 import has_float16
from fewtune.runtime import bf16_dot_products
from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.executable import CompiledModel, build_executable
from fewtune.runtime.target import device_of, host_target, is_foreign
from fewtune.runtime.tvm import has_feature, relax, tvm, usable_cores
from fewtune.schedule.defaults.default import apply_default_schedules
from fewtune.task import weight_layout
from fewtune.task.calls import call_counts
from fewtune.util.apart import at
from fewtune.util.optional_steps import OptionalSteps, last_line, with_most_steps

Found = TypeVar("Found")

_DEFAULT_SCHEDULES = "default_schedules"
# What an import can do without, in the order in which steps build upon each other.
STEPS = (*prepare.REWRITES, *LOWERINGS, _DEFAULT_SCHEDULES)


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
        The model simplified by all steps, its recurrent layers whole, where none of them fails.

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
            simplified = prepare.with_layers(bound, steps)
        layout: Literal["NHWC", "NCHW"] = "NHWC" if steps.uses(NHWC) else "NCHW"
        # Transforms have schedules only on CPUs, and only there filters fill vectors.
        may_change = is_cpu and layout == "NHWC"
        chooser = Chooser() if may_change and steps.uses(WINOGRAD) else None
        pads = steps.uses(PAD_FILTERS) or steps.uses(PAD_MATMUL)
        padding = Padding(lanes) if may_change and pads else None
        precision = options.precision if BF16_PRODUCTS not in known else "fp32"
        lowered = lower(simplified, target, layout, chooser, padding, steps, precision)
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

    known = dict(left_out or {})
    try:
        if not is_cpu and has_float16(bound):
            known[prepare.HALVES_IN_FLOATS] = "a GPU computes in half precision"
        if not is_cpu and prepare.has_layers(bound):
            known[prepare.RECURRENT_LAYERS] = "its kernel is one for CPUs"
        if options.precision == "bf16" and not has_bf16(target):
            known[BF16_PRODUCTS] = "this processor has no bf16 products (AVX-512 BF16): fp32 it is"
        made, failed = with_most_steps(attempt, STEPS, _unasked(options) | known)
    except FewtuneError:
        raise
    except Exception as fault:
        nodes = unsupported_nodes(
            prepare.simplify(bound), lambda alone: lower(alone, target, "NCHW"), last_line
        )
        if nodes:
            raise UnsupportedError(explain(nodes), nodes) from fault
        raise InputError(_unsupported(bound, last_line(fault))) from fault
    return replace(made, left_out=known | failed)


def checking_target(target: tvm.target.Target) -> tvm.target.Target:
    """What a model is compiled for to be checked here: its target, where that can run here."""
    runs_here = not is_foreign(target) and device_of(target).exist
    return target if runs_here else host_target(usable_cores())


def has_bf16(target: tvm.target.Target) -> bool:
    """Whether a target multiplies bfloat16 numbers in one instruction."""
    is_cpu = str(target.kind.name) == "llvm"
    return is_cpu and all(has_feature(target, each) for each in bf16_dot_products.FEATURES)


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

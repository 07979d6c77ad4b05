"""Lowers a model with every optional step that works on it, and checks its outputs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Generic, Literal, TypeVar

import onnx

from fewtune.errors import FewtuneError, InputError, last_line
from fewtune.model.import_options import ImportOptions
from fewtune.model.lower import (
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
from fewtune.process.apart import at
from fewtune.process.optional_steps import OptionalSteps, with_most_steps
from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.executable import CompiledModel, build_executable
from fewtune.runtime.target import device_of, has_own_device, host_target, is_foreign
from fewtune.runtime.tvm import relax, tvm, usable_cores
from fewtune.schedule.defaults.default import apply_default_schedules
from fewtune.task import weight_layout
from fewtune.task.calls import call_counts, calls_fit
from fewtune.util.switches import VARIABLE, switched_off

Found = TypeVar("Found")

_DEFAULT_SCHEDULES = "default_schedules"
# All optional steps of an import; a step comes before those that depend on it.
STEPS = (*prepare.REWRITES, *LOWERINGS, _DEFAULT_SCHEDULES)


@dataclass(frozen=True)
class Lowered(Generic[Found]):
    """A lowered model that was built with default schedules, and whose outputs are right.

    Attributes
    ----------
    module : IRModule
        Fused kernels without schedules.
    executable : VMExecutable
        The same kernels with default schedules.
    found
        The result of the check.
    simplified : ModelProto
    layout : {"NHWC", "NCHW"}
    winograd, padded : int
        Numbers of convolutions by Winograd's transforms, and of padded convolutions and products.
    saved_flops : int
        Operations that the transforms save, minus those on padding.
    left_out : dict of str
        Optional steps that failed on this model, or are not used, with the reason.
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
    presimplified: onnx.ModelProto | None = None,
) -> Lowered[Found]:
    """Lower a model with every optional step that works on it.

    A step that raises is left out, and so is one that makes outputs wrong. Without any optional
    step, this is plain TVM.

    Parameters
    ----------
    bound : ModelProto
        From `fewtune.onnx_graph.bind.bind_shapes`.
    target : Target
    options : ImportOptions
    check : callable
        Runs the compiled model and returns the difference of its outputs; raises
        `VerificationError` if that is too large.
    left_out : mapping, optional
        Steps known to fail on this model, with the reason.
    presimplified : ModelProto, optional
        The model after all rewrites of ONNX graphs, recurrent layers kept; only if none failed.

    Raises
    ------
    InputError
        If an operator cannot be imported.
    VerificationError
        If plain TVM's outputs are wrong.
    """
    is_cpu = not has_own_device(target)
    lanes = CpuTraits.of(target).lanes("float32") if is_cpu else 0
    here = checking_target(target)
    schedules: dict[int, tvm.tirx.PrimFunc | None] = {}

    def attempt(steps: OptionalSteps) -> Lowered[Found]:
        at("the graph was being simplified")
        if presimplified is not None and all(map(steps.uses, prepare.REWRITES)):
            simplified = presimplified
        else:
            simplified = prepare.with_layers(bound, steps)
        layout: Literal["NHWC", "NCHW"] = "NHWC" if steps.uses(NHWC) else "NCHW"
        # Only CPUs have schedules for the transforms, and vectors to fill.
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
        # This library is run a few times and dropped, and what its kernels would check in every
        # call, their arguments, takes LLVM a third of the time.
        executable = build_executable(scheduled, here, has_asserts=not calls_fit(scheduled))
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
            known[prepare.RECURRENT_LAYERS] = "its kernel is for CPUs only"
        made, failed = with_most_steps(
            attempt, STEPS, _disabled(options) | known, quick=(_DEFAULT_SCHEDULES,)
        )
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
    """The target for which a model is compiled to be checked: its own, if that can run here."""
    runs_here = not is_foreign(target) and device_of(target).exist
    return target if runs_here else host_target(usable_cores())


def _unsupported(model: onnx.ModelProto, reason: str) -> str:
    """A sentence that names the operators that the reason mentions, or all operators."""
    operators = prepare.onnx_operators(model)
    mentioned = [kind for kind in operators if re.search(rf"\b{kind}\b", reason, re.IGNORECASE)]
    named = ", ".join(f"{kind} (node {operators[kind]!r})" for kind in mentioned or operators)
    place = "at operator" if mentioned or len(operators) == 1 else "at one of the operators"
    return f"TVM cannot compile this model, {place} {named}: {reason}"


def _disabled(options: ImportOptions) -> dict[str, str]:
    """Steps that the options disable, with the reason."""
    found = dict.fromkeys(switched_off(), f"{VARIABLE} names it")
    if options.layout == "NCHW":
        found[NHWC] = "import_model.layout is NCHW"
    if options.winograd == "never":
        found[WINOGRAD] = "import_model.winograd is never"
    if options.pad_filters == "never":
        found |= dict.fromkeys((PAD_FILTERS, PAD_MATMUL), "import_model.pad_filters is never")
    return found

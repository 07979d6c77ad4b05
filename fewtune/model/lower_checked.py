"""Lowers a model with every optional step that works on it, and checks its outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic, TypeVar

import onnx

from fewtune.errors import FewtuneError, InputError, last_line
from fewtune.model.import_options import ImportOptions
from fewtune.model.lower import (
    LOWERINGS,
    NHWC,
    PAD_FILTERS,
    PAD_MATMUL,
    WINOGRAD,
    Layout,
    UnsupportedError,
    explain,
    lower,
    unsupported_nodes,
)
from fewtune.model.passes.padding import Padding
from fewtune.model.passes.winograd import Winograd
from fewtune.onnx_graph import simplify as prepare
from fewtune.onnx_graph.external_data import LightModel, light
from fewtune.onnx_graph.float16 import has_float16
from fewtune.onnx_graph.graph import all_tensors, tensor_bytes
from fewtune.onnx_graph.operators.recurrent import has_layers
from fewtune.process.apart import at
from fewtune.process.optional_steps import OptionalSteps, with_most_steps
from fewtune.runtime.executable import CompiledModel, build_executable
from fewtune.runtime.kernel_store import LINKING, KernelStore, linking, loaded
from fewtune.runtime.target import has_own_device, host_target, is_foreign, tvm_device
from fewtune.runtime.tvm import relax, tvm, usable_cores
from fewtune.schedule.defaults.default import apply_default_schedules
from fewtune.task import weight_layout
from fewtune.task.analysis import call_counts, calls_fit
from fewtune.util.switches import VARIABLE, switched_off

Found = TypeVar("Found")

_DEFAULT_SCHEDULES = "default_schedules"
# Of what a library may grow by; code takes the rest: 0.3 MB of SqueezeNet's 7.8.
_FOR_WEIGHTS = 0.9
# All optional steps of an import; a step comes before those that depend on it.
STEPS = (*prepare.REWRITES, *LOWERINGS, _DEFAULT_SCHEDULES)


@dataclass(frozen=True)
class Lowered(Generic[Found]):
    """A lowered model that was built with default schedules, and whose outputs are right.

    Attributes
    ----------
    module : IRModule
        Fused kernels without schedules.
    found
        The result of the check.
    simplified : LightModel
    layout : {"NHWC", "NCHW"}
    winograd, padding
        What was computed by transforms, and what was padded.
    weight_bytes : int
        Of the model as given.
    left_out : dict of str
        Optional steps that failed on this model, or are not used, with the reason.
    """

    module: tvm.IRModule
    found: Found
    simplified: LightModel
    layout: Layout
    winograd: Winograd
    padding: Padding
    weight_bytes: int
    left_out: dict[str, str] = field(default_factory=dict)


def lower_checked(
    bound: onnx.ModelProto | LightModel,
    target: tvm.target.Target,
    options: ImportOptions,
    check: Callable[[CompiledModel], Found],
    left_out: Mapping[str, str] | None = None,
    presimplified: LightModel | None = None,
) -> Lowered[Found]:
    """Lower a model with every optional step that works on it.

    A step that raises is left out, and so is one that makes outputs wrong. Without any optional
    step, this is plain TVM.

    Parameters
    ----------
    bound : ModelProto or LightModel
        From `fewtune.onnx_graph.bind.bind_shapes`.
    target : Target
    options : ImportOptions
    check : callable
        Runs the compiled model and returns the difference of its outputs; raises
        `VerificationError` if that is too large.
    left_out : mapping, optional
        Steps known to fail on this model, with the reason.
    presimplified : LightModel, optional
        The model after all rewrites of ONNX graphs, recurrent layers kept; only if none failed.

    Raises
    ------
    InputError
        If an operator cannot be imported.
    VerificationError
        If plain TVM's outputs are wrong.
    """
    known, bound = dict(left_out or {}), light(bound)
    attempt = _Attempt(bound, target, check, presimplified, options.most_growth)
    try:
        if has_own_device(target) and has_float16(bound.model):
            known[prepare.HALVES_IN_FLOATS] = "a GPU computes in half precision"
        if has_own_device(target) and has_layers(bound.model):
            known[prepare.RECURRENT_LAYERS] = "its kernel is for CPUs only"
        made, failed = with_most_steps(
            attempt, STEPS, _disabled(options) | known, quick=(_DEFAULT_SCHEDULES,)
        )
    except FewtuneError:
        raise
    except Exception as fault:
        nodes = unsupported_nodes(prepare.simplify(bound.whole()), target)
        if nodes:
            raise UnsupportedError(explain(nodes), nodes) from fault
        reason = f"TVM cannot compile this model, but each of its nodes alone: {last_line(fault)}"
        raise InputError(reason) from fault
    return replace(made, left_out=known | failed)


@dataclass
class _Attempt(Generic[Found]):
    """Lowers, builds and checks a model with some of the optional steps."""

    bound: LightModel
    target: tvm.target.Target
    check: Callable[[CompiledModel], Found]
    presimplified: LightModel | None
    most_growth: float
    schedules: dict[int, tvm.tirx.PrimFunc | None] = field(default_factory=dict)

    def __call__(self, steps: OptionalSteps) -> Lowered[Found]:
        at("simplifying the graph")
        simplified = self.presimplified
        if simplified is None or not all(map(steps.uses, prepare.REWRITES)):
            simplified = prepare.with_light_layers(self.bound, steps)
        layout: Layout = "NHWC" if steps.uses(NHWC) else "NCHW"
        weight_bytes = sum(map(tensor_bytes, all_tensors(self.bound.model)))
        winograd = Winograd(most_bytes=_FOR_WEIGHTS * (self.most_growth - 1) * weight_bytes)
        padding = Padding()
        lowered = lower(simplified, self.target, layout, winograd, padding, steps)
        here, scheduled = checking_target(self.target), lowered
        if steps.uses(_DEFAULT_SCHEDULES):
            with steps.step(_DEFAULT_SCHEDULES):
                at("giving kernels their default schedules")
                names = list(call_counts(lowered))
                scheduled = apply_default_schedules(lowered, names, here, self.schedules)
                if not has_own_device(self.target):
                    scheduled = weight_layout.fold(scheduled)
        at("compiling the kernels")
        # This library is run a few times and dropped, and what its kernels would check in every
        # call, their arguments, takes LLVM a third of the time.
        executable = _built(scheduled, here)
        at("comparing outputs with onnxruntime's")
        found = self.check(CompiledModel(executable, here))
        return Lowered(lowered, found, simplified, layout, winograd, padding, weight_bytes)


def _built(scheduled: tvm.IRModule, here: tvm.target.Target) -> relax.VMExecutable:
    """A model that can be run here; its kernels are kept, as checks of schedules need them."""
    fits = calls_fit(scheduled)
    if not fits or (store := KernelStore.of(here)) is None:
        return build_executable(scheduled, here, has_asserts=not fits)
    objects: dict[str, Path] = {}
    with linking(store, objects):
        executable = build_executable(scheduled, here, pipeline=LINKING)
    if objects:
        executable.mod.import_module(loaded(objects))
    return executable


def checking_target(target: tvm.target.Target) -> tvm.target.Target:
    """The target for which a model is compiled to be checked: its own, if that can run here."""
    runs_here = not is_foreign(target) and tvm_device(target).exist
    return target if runs_here else host_target(usable_cores())


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

"""Imports ONNX models as fused Relax kernels, and checks their outputs before tuning."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from fewtune.artifacts import ImportReport, TensorSpec
from fewtune.errors import InputError, VerificationError, last_line
from fewtune.model.import_options import ImportOptions
from fewtune.model.lower import NHWC, lower
from fewtune.model.lower_checked import STEPS, checking_target, lower_checked
from fewtune.model.passes.tvmscript.recurrent_layers import is_recurrence
from fewtune.model.source import load_registered
from fewtune.model.unsupported import UnsupportedError
from fewtune.onnx_graph import simplify as prepare
from fewtune.onnx_graph.external_data import light
from fewtune.onnx_graph.operators.vision.suppression import padding_notes
from fewtune.process.apart import at
from fewtune.process.optional_steps import OptionalSteps
from fewtune.runtime.executable import CompiledModel, build_executable
from fewtune.runtime.tvm import read_module, set_threads, tvm, usable_cores
from fewtune.task.calls import call_counts
from fewtune.util.files import canonical_json, write_text
from fewtune.verify.comparison import Difference
from fewtune.verify.draws import GIVEN, Draw, drawn_inputs
from fewtune.verify.intermediate import IntermediateValues
from fewtune.verify.locate import locate
from fewtune.verify.make_reference import make_reference
from fewtune.verify.reference import Reference
from fewtune.verify.session import tensor_specs
from fewtune.verify.taps import check_taps

LOWERED = "lowered.json"
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
    bound : ModelProto
        The model with its dynamic dimensions bound.
    reference : Reference
        The outputs and intermediate values that onnxruntime computes.
    """

    report: ImportReport
    lowered: tvm.IRModule
    bound: onnx.ModelProto
    reference: Reference

    def write(self, directory: Path) -> None:
        """Write everything into ``directory``."""
        prepare.save(self.bound, directory / REFERENCE)
        self.reference.write(directory)
        write_text(directory / LOWERED, tvm.ir.save_json(self.lowered))
        self.report.write(directory)


def import_model(
    name: str,
    models_directory: Path,
    target: tvm.target.Target,
    threads: int,
    options: ImportOptions,
    directory: Path,
    left_out: Mapping[str, str] | None = None,
) -> ImportReport:
    """Import a registered model, verify it untuned, and write it into ``directory``.

    Written are: ``model.onnx``, the model with its dynamic dimensions bound, for onnxruntime; the
    outputs that onnxruntime computes (`fewtune.verify.reference`); the lowered Relax module; the
    report. See `imported_model` for the other parameters and what is raised.
    """
    imported = imported_model(name, models_directory, target, threads, options, left_out)
    imported.write(directory)
    return imported.report


def imported_model(
    name: str,
    models_directory: Path,
    target: tvm.target.Target,
    threads: int,
    options: ImportOptions,
    left_out: Mapping[str, str] | None = None,
) -> Imported:
    """Import a registered model, and verify it untuned.

    A crash of native code ends this process; `fewtune.model.import_apart` survives it.

    Parameters
    ----------
    name : str
    models_directory : Path
    target : Target
    threads : int
    options : ImportOptions
    left_out : mapping, optional
        Optional steps known to fail on this model, with the reason.

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
    at("the model's file was being read")
    loaded = load_registered(models_directory, name)
    bound = loaded.bound()
    prepare.check_finite(bound)
    forgiving = OptionalSteps(forgiving=True)
    layered = prepare.with_layers(bound, forgiving)
    # The values of each step of a recurrent layer are compared, and rounded.
    simplified = prepare.unrolled(layered)
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
    inside = IntermediateValues(shared, shared_simplified, reference.feeds, threads, options.seed)
    last: CompiledModel | None = None

    def run(feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        assert last is not None
        return last.outputs([feeds[each] for each in order])

    def check(compiled: CompiledModel) -> Difference:
        nonlocal last
        last = compiled
        _LOG.info("%s: lowered; comparing its outputs with onnxruntime's", name)
        found = reference.check(run, options.allowance)
        if not found.allowances <= 1:
            raise VerificationError(found.text)
        reference.taps[:] = inside.taps(compiled, order)
        within = check_taps(compiled, [reference.feeds[n] for n in order], reference.taps)
        if not within.allowances <= 1:
            raise VerificationError(within.text)
        return found.worse(within)

    def culprit() -> str:
        """A line about the first operator whose outputs differ."""
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
        except Exception as fault:  # noqa: BLE001 (a part of a model cannot always be compiled)
            return f"the operator that differs could not be found ({last_line(fault)})"

    try:
        presimplified = layered if forgiving.fault is None else None
        made = lower_checked(bound, target, options, check, left_out, presimplified)
    except VerificationError as fault:
        raise VerificationError(
            f"{name}: imported without tuning, {fault}; first to differ: {culprit()}"
        ) from fault
    except UnsupportedError as fault:
        raise UnsupportedError(f"{name}: {fault}", fault.unsupported) from fault
    except InputError as fault:
        raise InputError(f"{name}: {fault}") from fault
    for step, reason in made.left_out.items():
        _LOG.info("%s: %s is left out: %s", name, step, reason)
    lowered, found = made.module, made.found
    notes += [inside.note] if inside.note else []
    layers = sum(n for kernel, n in call_counts(lowered).items() if is_recurrence(kernel))
    if layers:
        notes.append(
            f"recurrent layers whose steps are all computed by one kernel: {layers}; that kernel "
            "has a fixed schedule, so it is no task, and is in no table of tasks"
        )
    _refuse_unstorable(name, lowered, outputs)
    report = ImportReport(
        model=name,
        source=loaded.description,
        source_sha256=loaded.sha256,
        binding=_binding(inputs, outputs, loaded.source.constants),
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
    return Imported(report, lowered, bound, reference)


def _refuse_unstorable(name: str, lowered: tvm.IRModule, outputs: Sequence[TensorSpec]) -> None:
    """Refuse an output that TVM can write, and cannot read: a constant without elements."""
    empty = next((each.name for each in outputs if 0 in each.shape), None)
    if empty is not None:
        try:
            read_module(tvm.ir.save_json(lowered))
        except Exception:  # noqa: BLE001 (TVM says so in many ways)
            raise InputError(
                f"{name}: output {empty!r} is a constant without elements, which TVM cannot store: "
                "take it out of the model's outputs"
            ) from None


def _binding(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], constants: Mapping[str, Any]
) -> str:
    """A digest of what the file leaves open: bound shapes and constant inputs."""
    bound = {
        "inputs": [each.model_dump() for each in inputs],
        "outputs": [each.model_dump() for each in outputs],
        "constants": dict(constants),
    }
    return hashlib.sha256(canonical_json(bound).encode()).hexdigest()[:12]


def read_lowered(directory: Path) -> tvm.IRModule:
    """Read the lowered module that `import_model` wrote.

    Raises
    ------
    InputError
        If it is missing or damaged.
    """
    path = directory / LOWERED
    try:
        return read_module(path.read_text())
    except Exception as fault:  # noqa: BLE001 (TVM raises many kinds)
        lines = str(fault).strip().splitlines() or [type(fault).__name__]
        raise InputError(
            f"{path} cannot be read ({lines[-1][:200]}): run stage import_model again"
        ) from None

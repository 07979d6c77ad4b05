"""A model checked as a run would: imported, verified untuned, its tasks listed."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from fewtune.artifacts import ImportReport, TaskInfo, TensorSpec
from fewtune.errors import FewtuneError, MachineError
from fewtune.machine.fingerprint import FingerprintOptions, detect_fingerprint
from fewtune.model.import_model import ImportOptions, import_model, read_lowered
from fewtune.model.registration import ModelSource
from fewtune.model.source import add_model, name_of
from fewtune.model.unsupported import UnsupportedError, UnsupportedNode
from fewtune.model_check.estimate import Estimate, TuningPace, estimate
from fewtune.runtime.target import target_from_json
from fewtune.selection.select import SelectOptions
from fewtune.selection.worth_tuning import is_worth_searching
from fewtune.task.extract import extract_tasks


@dataclass(frozen=True)
class CheckReport:
    """What a run would make of a model.

    Attributes
    ----------
    ok : bool
    reason : str or None
        Why a run would refuse it.
    exit_code : int
        Of ``fewtune run``: 0, 2 (bad input), 3 (this machine) or 4 (wrong outputs).
    model : str
    inputs, outputs : list of TensorSpec
        Names, static shapes and types; empty where it was refused before.
    unsupported : list of UnsupportedNode
        Every node that cannot be imported.
    max_error : float or None
        Largest difference of the untuned outputs from onnxruntime's, in the outputs' units.
    layout : str or None
        Of convolutions.
    tasks : int
        Distinct kernels.
    tuned : list of str
        Tasks that are worth a search; the others keep a default schedule.
    left_out : list of str
        Options that fail for this model, with the reason.
    notes : list of str
    estimate : Estimate or None
        Of the tuning time.
    """

    ok: bool
    reason: str | None
    exit_code: int
    model: str
    inputs: list[TensorSpec] = field(default_factory=list)
    outputs: list[TensorSpec] = field(default_factory=list)
    unsupported: list[UnsupportedNode] = field(default_factory=list)
    max_error: float | None = None
    layout: str | None = None
    tasks: int = 0
    tuned: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    estimate: Estimate | None = None

    def as_json(self) -> dict[str, Any]:
        """The report as plain values."""
        values = asdict(self)
        for side in ("inputs", "outputs"):
            values[side] = [spec.model_dump(mode="json") for spec in getattr(self, side)]
        return values

    def lines(self) -> list[str]:
        """The report as a person reads it."""
        text = [f"{self.model}: {'can be tuned' if self.ok else f'refused: {self.reason}'}"]
        for role, specs in (("input", self.inputs), ("output", self.outputs)):
            for spec in specs:
                shape = "x".join(map(str, spec.shape)) or "scalar"
                text.append(f"  {role} {spec.name}: {shape} {spec.dtype}")
        text += [
            f"  unsupported: {found.operator} node {found.node!r}: {found.reason}"
            for found in self.unsupported
        ]
        if self.ok:
            text.append(
                f"  outputs verified untuned: largest difference {self.max_error:.1e}, "
                f"{self.layout}"
            )
            text.append(f"  {self.tasks} tasks, {len(self.tuned)} of them worth a search")
        text += [f"  left out: {line}" for line in self.left_out]
        text += [f"  note: {line}" for line in self.notes]
        if self.estimate is not None:
            seconds = f"{self.estimate.seconds:.0f} s"
            text.append(f"  tuning takes about {seconds} ({self.estimate.rule})")
        return text


def check(
    model: str | Path,
    shapes: Mapping[str, Sequence[int]] | None = None,
    *,
    dimensions: Mapping[str, int] | None = None,
    constants: Mapping[str, Any] | None = None,
    inputs: str | Path | None = None,
    seed: int = 0,
    models_directory: Path | None = None,
    machine: FingerprintOptions | None = None,
    options: ImportOptions | None = None,
    select: SelectOptions | None = None,
    trials: int = 32,
    pace: TuningPace | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> CheckReport:
    """Say what a run would make of a model, without tuning or registering it.

    Parameters
    ----------
    model : str or Path
        An ``.onnx`` file, ``light:NAME``, ``zoo:NAME``, or a name registered in
        ``models_directory``.
    shapes, dimensions, constants
        As `fewtune.model.source.read_model`.
    inputs : str or Path, optional
        An ``.npz`` file of sample inputs, input name to array.
    seed : int
        Of a light or zoo model's weights.
    models_directory : Path, optional
        Folder of registered models.
    machine, options, select
        The options of a run's stages fingerprint, import_model and select_tasks.
    trials : int
        Trials a task of the run, for the estimate.
    pace : TuningPace, optional
        What earlier runs on this machine took, for the estimate.
    say : callable
        Told how far the check is.

    Returns
    -------
    report : CheckReport
        What a user can mend is told there; it is not raised.
    """
    source = str(model)
    found = CheckReport(ok=False, reason=None, exit_code=0, model=source)
    try:
        fingerprint = detect_fingerprint(machine or FingerprintOptions())
        target = target_from_json(fingerprint.target)
        with tempfile.TemporaryDirectory(prefix="fewtune-check-") as scratch:
            folder = Path(scratch)
            is_registered = (
                models_directory is not None
                and not source.endswith(".onnx")
                and (models_directory / source / "model.yaml").is_file()
            )
            if is_registered and not (shapes or dimensions or constants or inputs):
                assert models_directory is not None
                name = source
                ModelSource.read(models_directory, name)
            else:
                name = name_of(source)
                models_directory = folder / "models"
                sample = None if inputs is None else Path(inputs)
                add_model(
                    source,
                    models_directory,
                    name,
                    shapes,
                    seed,
                    dimensions,
                    constants=constants,
                    inputs=sample,
                )
            found = replace(found, model=name)
            report = import_model(
                name,
                models_directory,
                target,
                fingerprint.threads,
                options or ImportOptions(),
                folder,
                say,
            )
            tasks = [task.info for task in extract_tasks(read_lowered(folder), target)]
    except FewtuneError as error:
        reason = " ".join(str(error).split())
        unsupported = error.unsupported if isinstance(error, UnsupportedError) else []
        return replace(found, reason=reason, exit_code=error.exit_code, unsupported=unsupported)
    except MemoryError:
        code = MachineError.exit_code
        return replace(found, reason="the model needs more memory than there is", exit_code=code)
    return _accepted(found, report, tasks, select or SelectOptions(), trials, pace)


def _accepted(
    found: CheckReport,
    report: ImportReport,
    tasks: Sequence[TaskInfo],
    select: SelectOptions,
    trials: int,
    pace: TuningPace | None,
) -> CheckReport:
    tuned = [task.name for task in tasks if is_worth_searching(task, select.min_share)]
    return replace(
        found,
        ok=True,
        inputs=report.inputs,
        outputs=report.outputs,
        max_error=report.max_error,
        layout=report.layout,
        tasks=len(tasks),
        tuned=tuned,
        left_out=report.left_out,
        notes=report.notes,
        estimate=estimate(len(tasks), trials, pace),
    )

"""The arguments of a check, and its report, with an estimate of the tuning time.

This module loads no TVM, so that a process that starts a check stays light.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import Field

from fewtune.artifacts import Part, Selection, TensorSpec, TuneReport, UnsupportedNode
from fewtune.errors import FewtuneError, one_line
from fewtune.machine.fingerprint import FingerprintOptions
from fewtune.options import ImportOptions, SelectOptions, ShareOptions
from fewtune.process.apart import Job

# Seconds for each trial of each task: SqueezeNet, 30 tasks with 32 trials each, took 25 s on two
# cores of a Zen 4 (results).
_DEFAULT_S = 0.026
# With fewer trials a task, rounds in the model may take longer than full tuning: 157 % of its time
# at four trials.
FEW_TRIALS = 8
# Seconds of any tuning before its first trial: tasks are read, and processes begin.
_BEGIN_S = 1.0


class PastTunings(Part):
    """The work and the time of earlier runs on this machine.

    Attributes
    ----------
    seconds : float
        Time of tuning and sharing, over all runs.
    task_trials : int
        Tasks times trials per task, over all runs.
    runs : int
        Number of runs.
    """

    seconds: float
    task_trials: int
    runs: int


class CheckJob(Job):
    """The arguments of `fewtune.check`.

    Attributes
    ----------
    model : str or Path
        An ``.onnx`` file, ``light:NAME``, ``zoo:NAME``, or a name registered in
        ``models_directory``.
    name : str, optional
        For messages; the file's unless given.
    shapes, dimensions, paddable, constants : mapping, optional
        See `fewtune.model.source.add_model`.
    inputs : str or Path, optional
        An ``.npz`` file of sample inputs, input name to array.
    seed : int
        Seed of a light or zoo model's weights.
    models_directory : Path, optional
        Folder of registered models.
    machine, options, select : optional
        Options of the stages fingerprint, import_model and select_tasks.
    trials : int
        Trials per task, for the estimate.
    past : PastTunings, optional
        Earlier runs on this machine, for the estimate.
    """

    model: str | Path
    name: str | None = None
    shapes: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None
    dimensions: Mapping[str, Any] | None = None
    paddable: Mapping[str, float] | None = None
    constants: Mapping[str, Any] | None = None
    inputs: Path | None = None
    seed: int = 0
    models_directory: Path | None = None
    machine: FingerprintOptions = Field(default_factory=FingerprintOptions)
    options: ImportOptions = Field(default_factory=ImportOptions)
    select: SelectOptions = Field(default_factory=SelectOptions)
    trials: int = 32
    past: PastTunings | None = None


class Estimate(Part):
    """An estimate of the tuning time.

    Attributes
    ----------
    seconds : float
    rule : str
        A line that says how it was estimated.
    """

    seconds: float
    rule: str


def estimate(tasks: int, trials: int, past: PastTunings | None = None) -> Estimate:
    """Estimate the time of selective tuning.

    Parameters
    ----------
    tasks : int
        Distinct kernels of the model.
    trials : int
        Trials per task.
    past : PastTunings, optional
        Earlier runs on this machine; without them, SqueezeNet's time is used.
    """
    each_s, whose = _DEFAULT_S, "SqueezeNet took on two cores"
    if past is not None and past.task_trials:
        results = "result" if past.runs == 1 else "results"
        each_s = past.seconds / past.task_trials
        whose = f"{past.runs} earlier {results} on this machine took"
    return Estimate(
        seconds=round(tasks * trials * each_s, 1),
        rule=f"an estimate: {tasks} tasks x {trials} trials x {each_s:.3f} s, as {whose}",
    )


def too_few(model: str, trials: int) -> str:
    """What to say of so few trials a task that selective tuning does not pay; empty if it does."""
    if trials >= FEW_TRIALS:
        return ""
    return (
        f"selective tuning of {model} does not pay with {trials} trials a task: full tuning takes "
        "no longer"
    )


class CheckReport(Part):
    """What a run would do with a model.

    Attributes
    ----------
    ok : bool
    reason : str or None
        Why a run would refuse it.
    exit_code : int
        The exit code of ``fewtune run``: 0, 2 (bad input), 3 (this machine) or 4 (wrong outputs).
    model : str
    inputs, outputs : list of TensorSpec
        Names, static shapes and types; empty if the model is refused.
    unsupported : list of UnsupportedNode
        Every node that cannot be imported.
    max_error : float or None
        Largest difference of the untuned outputs from onnxruntime's, in the outputs' units.
    layout : str or None
        The layout of convolutions.
    tasks : int
        Distinct kernels.
    tuned : list of str
        Tasks that are worth a search; the others keep default schedules.
    known : list of str
        Those of them that the predictor knows: they have a schedule before anything is measured.
    expected_gain : float
        The part of the first library's time that measuring may save.
    left_out : list of str
        Optional steps that fail for this model, with the reason.
    notes : list of str
    estimate : Estimate or None
        The estimated tuning time.
    """

    ok: bool
    model: str
    reason: str | None = None
    exit_code: int = 0
    inputs: list[TensorSpec] = []
    outputs: list[TensorSpec] = []
    unsupported: list[UnsupportedNode] = []
    max_error: float | None = None
    layout: str | None = None
    tasks: int = 0
    tuned: list[str] = []
    known: list[str] = []
    expected_gain: float = 0.0
    left_out: list[str] = []
    notes: list[str] = []
    estimate: Estimate | None = None

    @classmethod
    def refused(cls, model: str, error: FewtuneError) -> Self:
        """The report of a model that a run would refuse."""
        return cls(
            ok=False,
            reason=one_line(error),
            exit_code=error.exit_code,
            model=model,
            unsupported=getattr(error, "unsupported", []),
        )

    def as_json(self) -> dict[str, Any]:
        """The report as JSON values."""
        return self.model_dump(mode="json")

    def lines(self) -> list[str]:
        """The report as lines of text."""
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
            text.append(
                f"  {self.tasks} tasks, {len(self.tuned)} of them worth a search; the predictor "
                f"knows {len(self.known)}, measuring may save {self.expected_gain:.0%} more"
            )
        text += [f"  left out: {line}" for line in self.left_out]
        text += [f"  note: {line}" for line in self.notes]
        if self.estimate is not None:
            seconds = f"{self.estimate.seconds:.0f} s"
            text.append(f"  tuning takes about {seconds} ({self.estimate.rule})")
        return text


def at_most_full(options: ShareOptions, selection: Selection, tuned: TuneReport) -> ShareOptions:
    """Options with the time of full tuning as their budget, where trials are few."""
    if selection.method == "all" or tuned.trials_per_task >= FEW_TRIALS:
        return options
    past = PastTunings(seconds=tuned.tuning_s, task_trials=tuned.trials, runs=1)
    full_s = _BEGIN_S + estimate(max(1, len(selection.worth)), tuned.trials_per_task, past).seconds
    return options.model_copy(update={"budget_s": min(full_s, options.budget_s or full_s)})

"""The report of a check, as values and as text, with an estimate of the tuning time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from fewtune.artifacts import TensorSpec

if TYPE_CHECKING:
    from fewtune.model.unsupported import UnsupportedNode


# Seconds for each trial of each task: SqueezeNet, 30 tasks with 32 trials each, took 25 s on two
# cores of a Zen 4 (results).
_DEFAULT_S = 0.026
# With fewer trials a task, rounds in the model may take longer than full tuning: 157 % of its time
# at four trials.
FEW_TRIALS = 8


@dataclass(frozen=True)
class PastTunings:
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


@dataclass(frozen=True)
class Estimate:
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
    if past is None or past.task_trials == 0:
        return Estimate(
            round(tasks * trials * _DEFAULT_S, 1),
            f"an estimate: {tasks} tasks x {trials} trials x {_DEFAULT_S} s, as SqueezeNet took "
            "on two cores",
        )
    each_s = past.seconds / past.task_trials
    results = "result" if past.runs == 1 else "results"
    return Estimate(
        round(tasks * trials * each_s, 1),
        f"an estimate: {tasks} tasks x {trials} trials x {each_s:.3f} s, as {past.runs} earlier "
        f"{results} on this machine took",
    )


def too_few(model: str, trials: int) -> str:
    """What to say of so few trials a task that selective tuning does not pay; empty if it does."""
    if trials >= FEW_TRIALS:
        return ""
    return (
        f"selective tuning of {model} does not pay with {trials} trials a task: full tuning takes "
        "no longer"
    )


@dataclass(frozen=True)
class CheckReport:
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
    known: list[str] = field(default_factory=list)
    expected_gain: float = 0.0
    left_out: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    estimate: Estimate | None = None

    def as_json(self) -> dict[str, Any]:
        """The report as JSON values."""
        values = asdict(self)
        for side in ("inputs", "outputs"):
            values[side] = [spec.model_dump(mode="json") for spec in getattr(self, side)]
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> CheckReport:
        """The report from the values of `as_json`."""
        found = dict(values)
        for side in ("inputs", "outputs"):
            found[side] = [TensorSpec.model_validate(spec) for spec in values[side]]
        if values["unsupported"]:
            # This import loads onnx, which the caller's process does not need otherwise.
            from fewtune.model.unsupported import UnsupportedNode

            found["unsupported"] = [UnsupportedNode(**node) for node in values["unsupported"]]
        found["estimate"] = values["estimate"] and Estimate(**values["estimate"])
        return cls(**found)

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

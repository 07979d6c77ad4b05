"""The report of a check, as values and as text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from fewtune.artifacts import TensorSpec
from fewtune.model_check.estimate import Estimate

if TYPE_CHECKING:
    from fewtune.model.unsupported import UnsupportedNode


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
            text.append(f"  {self.tasks} tasks, {len(self.tuned)} of them worth a search")
        text += [f"  left out: {line}" for line in self.left_out]
        text += [f"  note: {line}" for line in self.notes]
        if self.estimate is not None:
            seconds = f"{self.estimate.seconds:.0f} s"
            text.append(f"  tuning takes about {seconds} ({self.estimate.rule})")
        return text

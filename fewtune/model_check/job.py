"""The arguments of a check as one value.

This module loads no TVM, so that a process that starts a check stays light.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fewtune.model_check.estimate import PastTunings
from fewtune.process.apart import LEFT_OUT

if TYPE_CHECKING:
    from fewtune.machine.fingerprint import FingerprintOptions
    from fewtune.model.import_options import ImportOptions
    from fewtune.selection.options import SelectOptions


@dataclass(frozen=True)
class CheckJob:
    """The arguments of `fewtune.check`.

    Attributes
    ----------
    model : str or Path
        An ``.onnx`` file, ``light:NAME``, or a name registered in
        ``models_directory``.
    shapes, dimensions, constants : mapping, optional
        See `fewtune.model.source.read_model`.
    inputs : str or Path, optional
        An ``.npz`` file of sample inputs, input name to array.
    seed : int
        Seed of a light model's weights.
    models_directory : Path, optional
        Folder of registered models.
    machine, options, select : optional
        Options of the stages fingerprint, import_model and select_tasks; defaults unless given.
    trials : int
        Trials per task, for the estimate.
    past : PastTunings, optional
        Earlier runs on this machine, for the estimate.
    left_out : mapping of str to str
        Optional steps that are not used, with the reason.
    """

    model: str | Path
    shapes: Mapping[str, Sequence[int]] | None = None
    dimensions: Mapping[str, int] | None = None
    constants: Mapping[str, Any] | None = None
    inputs: str | Path | None = None
    seed: int = 0
    models_directory: Path | None = None
    machine: FingerprintOptions | None = None
    options: ImportOptions | None = None
    select: SelectOptions | None = None
    trials: int = 32
    past: PastTunings | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_bound(self) -> bool:
        """Whether the job binds shapes, dimensions or values of the model's inputs."""
        return bool(self.shapes or self.dimensions or self.constants or self.inputs)

    def as_json(self) -> dict[str, Any]:
        """The job as JSON values, for another process."""
        models = self.models_directory
        given = {
            "model": str(self.model),
            "shapes": {name: list(shape) for name, shape in (self.shapes or {}).items()},
            "dimensions": dict(self.dimensions or {}),
            "constants": dict(self.constants or {}),
            "inputs": None if self.inputs is None else str(Path(self.inputs).absolute()),
            "models_directory": None if models is None else str(models.absolute()),
            "past": None if self.past is None else asdict(self.past),
        }
        for name in ("machine", "options", "select"):
            options = getattr(self, name)
            given[name] = None if options is None else options.model_dump(mode="json")
        return {**given, "seed": self.seed, "trials": self.trials, LEFT_OUT: dict(self.left_out)}

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> CheckJob:
        """The job from the values of `as_json`; missing options get their defaults."""
        from fewtune.machine.fingerprint import FingerprintOptions
        from fewtune.model.import_options import ImportOptions
        from fewtune.selection.options import SelectOptions

        models, past = given["models_directory"], given["past"]
        return replace(
            cls(**given),
            inputs=None if given["inputs"] is None else Path(given["inputs"]),
            models_directory=None if models is None else Path(models),
            machine=FingerprintOptions.model_validate(given["machine"] or {}),
            options=ImportOptions.model_validate(given["options"] or {}),
            select=SelectOptions.model_validate(given["select"] or {}),
            past=None if past is None else PastTunings(**past),
        )

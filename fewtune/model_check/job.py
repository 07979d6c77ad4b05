"""The arguments of a check as one value.

This module loads no TVM, so that a process that starts a check stays light.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from fewtune.machine.fingerprint import FingerprintOptions
from fewtune.model.import_options import ImportOptions
from fewtune.model_check.report import PastTunings
from fewtune.process.apart import Job
from fewtune.selection.options import SelectOptions


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

    @property
    def is_bound(self) -> bool:
        """Whether the job binds shapes, dimensions or values of the model's inputs."""
        given = (self.shapes, self.dimensions, self.paddable, self.constants, self.inputs)
        return any(given)

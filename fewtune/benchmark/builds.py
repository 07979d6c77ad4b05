"""What a benchmark builds that does not depend on the tuned library.

It needs one core, and so does compiling the library: a caller that does both can build this
meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

from fewtune.artifacts import Fingerprint, ImportReport, TaskInfo
from fewtune.machine.core_to_core import HandOver, hand_over
from fewtune.machine.peak import PeakMeter, peak_meter
from fewtune.model.import_model import read_lowered
from fewtune.runtime.executable import CompiledModel, build_executable
from fewtune.runtime.target import target_from_json
from fewtune.runtime.tvm import set_threads, tvm
from fewtune.task.analysis import FLOAT32_BYTES

# Weights that building a model holds at most, in the process that compiles and in this one.
_COPIES = 8


@dataclass(frozen=True)
class Builds:
    """The untuned model, and what measures the machine; nothing of it has run.

    Attributes
    ----------
    untuned : CompiledModel
        The model as TVM compiles it without schedules.
    hand_over : HandOver or None
        None for a single core, or if a GPU computes.
    meter : PeakMeter or None
        None if a GPU computes.
    """

    untuned: CompiledModel
    hand_over: HandOver | None
    meter: PeakMeter | None

    @staticmethod
    def of(import_directory: Path, tasks: list[TaskInfo], fingerprint: Fingerprint) -> Builds:
        """Build everything.

        Parameters
        ----------
        import_directory : Path
        tasks : list of TaskInfo
            The model's; they tell whether products of bytes count.
        fingerprint : Fingerprint
            Not a board's.
        """
        set_threads(fingerprint.threads)
        target = target_from_json(fingerprint.target)
        return Builds(
            untuned_model(import_directory, target),
            hand_over(target, fingerprint.threads),
            peak_meter(target, fingerprint.threads, with_bytes=multiply_bytes(tasks)),
        )


def untuned_model(import_directory: Path, target: tvm.target.Target) -> CompiledModel:
    """The model as TVM compiles it without schedules."""
    return CompiledModel(build_executable(read_lowered(import_directory), target), target)


def multiply_bytes(tasks: list[TaskInfo]) -> bool:
    """Whether some of a model's products are of bytes."""
    return any(task.byte_flops for task in tasks)


def has_room(import_directory: Path) -> bool:
    """Whether memory is free for `Builds` beside a process that compiles the model."""
    parameters = ImportReport.read(import_directory).parameters
    return _COPIES * FLOAT32_BYTES * parameters <= psutil.virtual_memory().available // 2

"""What a benchmark builds that does not depend on the tuned library.

It needs one core, and so does compiling the library: a caller that does both can build this
meanwhile.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import psutil

from fewtune.artifacts import Fingerprint, ImportReport, TaskInfo
from fewtune.machine.peak import PeakMeter, peak_meter
from fewtune.model.import_model import read_lowered
from fewtune.model.one_module import largest_alone
from fewtune.runtime.executable import CompiledModel, build_executable
from fewtune.runtime.target import target_from_json
from fewtune.runtime.tvm import set_threads, tvm
from fewtune.task.analysis import FLOAT32_BYTES

# Weights that building a model holds at most, in the process that compiles and in this one.
_COPIES = 8


class Builds(NamedTuple):
    """The untuned model, and the meter of the machine's peak (None for a GPU); none has run."""

    untuned: CompiledModel
    meter: PeakMeter | None

    @staticmethod
    def of(import_directory: Path, tasks: list[TaskInfo], fingerprint: Fingerprint) -> Builds:
        """Build both, not for a board; the tasks tell whether products of bytes count."""
        set_threads(fingerprint.threads)
        target = target_from_json(fingerprint.target)
        multiply_bytes = any(task.byte_flops for task in tasks)
        return Builds(
            untuned_model(import_directory, target),
            peak_meter(target, fingerprint.threads, with_bytes=multiply_bytes),
        )


def untuned_model(import_directory: Path, target: tvm.target.Target) -> CompiledModel:
    """The model, at the largest of its shapes, as TVM compiles it without schedules."""
    lowered = largest_alone(read_lowered(import_directory))
    return CompiledModel(build_executable(lowered, target), target)


def has_room(import_directory: Path) -> bool:
    """Whether memory is free for `Builds` beside a process that compiles the model."""
    parameters = ImportReport.read(import_directory).parameters
    return _COPIES * FLOAT32_BYTES * parameters <= psutil.virtual_memory().available // 2

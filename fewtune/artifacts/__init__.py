"""The files that pass from one stage to the next, each with its one typed reader and writer.

Every artifact is canonical JSON (sorted keys), so that equal results are equal bytes.
"""

from __future__ import annotations

from fewtune.artifacts.base import Artifact, Part
from fewtune.artifacts.comparison import Comparison, KernelPair
from fewtune.artifacts.compiled import CompileReport, LeftOut, ReplacedSchedule
from fewtune.artifacts.machine import Conditions, Fingerprint, LogInfo
from fewtune.artifacts.model import (
    CallSite,
    ImportReport,
    Skeleton,
    TaskInfo,
    TaskTable,
    TensorSpec,
)
from fewtune.artifacts.results import (
    BenchmarkReport,
    KernelRow,
    LatencyStats,
    Metrics,
    Spread,
)
from fewtune.artifacts.selection import BankDonor, Cluster, Selection, SelectionTiming
from fewtune.artifacts.tuning import (
    Curve,
    CurvePoint,
    ModelFinal,
    Prediction,
    RoundName,
    SharedTask,
    ShareReport,
    ShareRound,
    ShareStatus,
    StoppedBy,
    TunedTask,
    TuneReport,
    TuneStatus,
    TuningStep,
    failures_by_cause,
)

__all__ = [
    "Artifact",
    "BankDonor",
    "BenchmarkReport",
    "CallSite",
    "Cluster",
    "Comparison",
    "CompileReport",
    "Conditions",
    "Curve",
    "CurvePoint",
    "Fingerprint",
    "ImportReport",
    "KernelPair",
    "KernelRow",
    "LatencyStats",
    "LeftOut",
    "LogInfo",
    "Metrics",
    "ModelFinal",
    "Part",
    "Prediction",
    "ReplacedSchedule",
    "Selection",
    "SelectionTiming",
    "ShareReport",
    "ShareRound",
    "RoundName",
    "ShareStatus",
    "StoppedBy",
    "SharedTask",
    "Skeleton",
    "Spread",
    "TaskInfo",
    "TaskTable",
    "TensorSpec",
    "TuneReport",
    "TuneStatus",
    "TunedTask",
    "TuningStep",
    "failures_by_cause",
]

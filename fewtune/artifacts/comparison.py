"""Selective against full tuning of one model."""

from __future__ import annotations

from pydantic import Field

from fewtune.artifacts.base import Artifact, Part
from fewtune.artifacts.machine import Conditions


class KernelPair(Part):
    """One task in both libraries, timed where the model calls it, the libraries in turns."""

    task: str
    calls: int = Field(description="in one run of the model")
    selective_ms: float = Field(description="one call in the selective library")
    full_ms: float = Field(description="one call in the full library")
    lost_ms: float = Field(
        description="of all calls, selective less full, median of the rounds of all processes"
    )
    lost_p10_ms: float
    lost_p90_ms: float


class Comparison(Artifact):
    """Selective against full tuning of one model, measured interleaved, in some processes."""

    file_name = "compare.json"

    model: str
    full_tuning_s: float
    full_latency_ms: float
    selective_tuning_s: float
    selective_latency_ms: float
    untuned_latency_ms: float
    onnxruntime_latency_ms: float
    used_time_pct: float
    achieved_perf_pct: float = Field(
        description="full over selective latency, median of the rounds of all processes"
    )
    achieved_perf_p10_pct: float
    achieved_perf_p90_pct: float
    achieved_perf_by_process_pct: list[float] = Field(
        default=[], description="the median of each process's rounds"
    )
    speedup_over_onnxruntime: float | None = Field(
        default=None, description="onnxruntime over selective latency, as achieved_perf_pct"
    )
    full_speedup_over_onnxruntime: float | None = None
    openvino_latency_ms: float | None = Field(
        default=None, description="null where OpenVINO is not installed or cannot run the model"
    )
    speedup_over_openvino: float | None = None
    full_speedup_over_openvino: float | None = None
    full_tuning_stolen_pct: float | None = Field(
        default=None, description="of full tuning's time, what the host kept from the cores"
    )
    selective_tuning_stolen_pct: float | None = None
    measuring_stolen_pct: float | None = Field(
        default=None, description="of the time of these measurements"
    )
    tasks: int
    representatives: int
    full_trials: int
    selective_trials: int
    allowances: float | None = Field(
        default=None,
        description="error of the outputs over what rounding may move them, the worst element",
    )
    max_error: float | None = Field(
        default=None, description="largest difference from onnxruntime, in outputs' units"
    )
    max_relative_error: float
    kernels: list[KernelPair] = Field(
        default=[], description="the kernels of both libraries, most lost first"
    )
    library_sha256: dict[str, str] = Field(
        default={}, description="of the libraries measured, by strategy"
    )
    conditions: Conditions

    def headline(self) -> dict[str, float]:
        """The figures that selective tuning is judged by, with units in their names."""
        return {
            "used_time_pct": self.used_time_pct,
            "achieved_perf_pct": self.achieved_perf_pct,
            "achieved_perf_p10_pct": self.achieved_perf_p10_pct,
            "achieved_perf_p90_pct": self.achieved_perf_p90_pct,
        }

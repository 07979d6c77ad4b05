"""The measurements of one result: latencies, kernels, flat figures."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from fewtune.artifacts.base import Artifact, Part
from fewtune.artifacts.machine import Conditions
from fewtune.artifacts.tuning import ShareStatus, TuningStep
from fewtune.util.files import canonical_json, write_text


class LatencyStats(Part):
    """Latency of one variant over interleaved rounds, in milliseconds."""

    median_ms: float
    p10_ms: float
    p90_ms: float
    min_ms: float
    rounds: int


class Spread(Part):
    """A value over the rounds: a ratio of two variants' latencies, or a rate."""

    median: float
    p10: float
    p90: float


class KernelRow(Part):
    """One task in the benchmark's per-task table."""

    task: str
    shapes: str | None = Field(
        default=None, description="of its buffers; None in reports of earlier versions"
    )
    weight: int
    latency_ms: float | None = Field(description="best measured latency of one call")
    share: float | None = Field(
        description="weight * latency over the sum of all tasks; None where that is not known"
    )
    gflops: float | None
    gb_s: float | None = Field(
        default=None, description="10^9 bytes of its inputs and outputs a second"
    )
    peak_pct: float | None = Field(
        default=None,
        description="its operations over what the measured peak allows; searched ones only",
    )
    schedule: ShareStatus | Literal["tuned", "none", "in place"]
    donor: str | None

    @property
    def is_searched(self) -> bool:
        """Whether its schedule comes from tuning or sharing."""
        return self.schedule not in ("default", "none", "in place")

    def order(self) -> tuple[float, str]:
        """The key by which rows are sorted: the kernel whose calls take most time comes first."""
        return -(self.latency_ms or 0.0) * self.weight, self.task


class BenchmarkReport(Artifact):
    """End-to-end latencies of one result: untuned TVM, tuned TVM, onnxruntime, interleaved."""

    file_name = "benchmark.json"

    model: str
    strategy: str
    variants: dict[str, LatencyStats] = Field(
        description="untuned, tuned, onnxruntime; openvino where it is installed and can run it"
    )
    speedup_over_untuned: Spread
    speedup_over_onnxruntime: Spread | None = Field(
        default=None, description="null on a board, where onnxruntime does not run"
    )
    speedup_over_openvino: Spread | None = None
    allowances: float | None = Field(
        default=None,
        description="error of the outputs over what rounding may move them, the worst element",
    )
    max_error: float | None = Field(
        default=None, description="largest difference from onnxruntime, in outputs' units"
    )
    max_relative_error: float
    kernels: list[KernelRow]
    tuned_share: float | None = Field(description="share of kernel time in tuned or shared tasks")
    kernels_ms: float | None = Field(
        default=None, description="sum of weight * latency over the kernels"
    )
    model_gflops: float | None = Field(
        default=None, description="operations of all tasks over the tuned latency, 10^9 a second"
    )
    plain_gflops: float | None = Field(
        default=None,
        description="the same with every convolution counted as its plain sum of the filters it "
        "has; null where none is transformed or padded",
    )
    model_byte_gops: float | None = Field(
        default=None, description="what of model_gflops is of products of bytes; null without any"
    )
    peak_byte_gops: float | None = Field(
        default=None,
        description="most the machine did in products of bytes; null where it has no instruction "
        "for them, or the model none of them",
    )
    peak_gflops: float | None = Field(
        default=None, description="most the machine did in float32 multiply-adds; null for a GPU"
    )
    memory_gb_s: float | None = Field(
        default=None, description="most it moved to and from memory (STREAM triad); null for a GPU"
    )
    steps: list[TuningStep] = Field(default=[], description="what tuning time went to")
    failures: dict[str, int] = Field(default={}, description="failed candidates by cause")
    remarks: list[str] = Field(default=[], description="tasks that went another way than planned")
    library_sha256: str | None = Field(default=None, description="of the library measured")
    conditions: Conditions

    @property
    def peak_pct(self) -> float | None:
        """Per cent of the machine's measured peak that the whole model reaches."""
        if self.model_gflops is None or self.peak_gflops is None:
            return None
        of_bytes = self.model_byte_gops or 0.0
        share = (self.model_gflops - of_bytes) / self.peak_gflops
        return 100 * (share + of_bytes / (self.peak_byte_gops or self.peak_gflops))

    @property
    def outside_tuned_pct(self) -> float | None:
        """Per cent of the kernels' time in kernels that were not searched."""
        return None if self.tuned_share is None else 100 * (1 - self.tuned_share)


class Metrics(Artifact):
    """The flat figures of one result."""

    file_name = "metrics.json"

    latency_ms: float
    untuned_latency_ms: float
    onnxruntime_latency_ms: float | None = Field(
        default=None, description="null on a board, where onnxruntime does not run"
    )
    speedup_over_untuned: float
    speedup_over_onnxruntime: float | None = None
    openvino_latency_ms: float | None = Field(
        default=None, description="null where OpenVINO is not installed or cannot run the model"
    )
    speedup_over_openvino: float | None = None
    tuning_s: float = Field(description="selecting + tuning + sharing, seconds")
    tuning_stolen_pct: float | None = Field(
        default=None, description="of that time, what the machine's host kept from its cores"
    )
    selecting_s: float
    representative_tuning_s: float
    sharing_s: float
    compile_s: float
    tasks: int
    representatives: int
    dependents: int = Field(
        description="tasks that took schedules: of their cluster's representative, of a bank, or "
        "drawn by rule"
    )
    set_aside: int
    trials: int
    max_relative_error: float
    model_gflops: float | None = None
    plain_gflops: float | None = Field(
        default=None, description="with every convolution counted as its plain sum"
    )
    peak_gflops: float | None = None
    peak_pct: float | None = Field(default=None, description="of the peak, over the whole model")
    outside_tuned_pct: float | None = Field(
        default=None, description="of the kernels' time, in kernels that were not searched"
    )

    def figures(self) -> dict[str, float]:
        """The measured figures by name; DVC and MLflow take only numbers."""
        return self.model_dump(mode="json", exclude_none=True)

    def headline(self) -> dict[str, float]:
        """The figures that a result is compared by, with units in their names."""
        figures = {
            "latency_ms": self.latency_ms,
            "untuned_latency_ms": self.untuned_latency_ms,
            "onnxruntime_latency_ms": self.onnxruntime_latency_ms,
            "times_onnxruntime": self.speedup_over_onnxruntime,
            "peak_pct": self.peak_pct,
            "tuning_s": self.tuning_s,
            "compile_s": self.compile_s,
            "trials": self.trials,
        }
        return {name: value for name, value in figures.items() if value is not None}

    def write(self, directory: Path) -> None:
        """Write the figures that were measured."""
        write_text(directory / self.file_name, canonical_json(self.figures()))

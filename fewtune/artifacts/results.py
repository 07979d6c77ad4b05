"""The compiled library, and what was measured of it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from fewtune.artifacts.base import Artifact, Part
from fewtune.artifacts.machine import Conditions
from fewtune.artifacts.tuning import ShareStatus, TuningStep
from fewtune.util.files import canonical_json, write_text


class LeftOut(Part):
    """An optional rewrite that a library does without."""

    what: str
    reason: str


class ReplacedSchedule(Part):
    """A kernel that did not keep its schedule."""

    kernel: str
    schedule: str = Field(description="what it has instead")
    reason: str


class CompileReport(Artifact):
    """The exported library and how far its outputs are from onnxruntime's."""

    file_name = "compile.json"

    model: str
    strategy: str
    library: str = Field(description="file name of the exported library, beside this file")
    scheduled_from_log: int = Field(description="kernels with a schedule from the tuning log")
    scheduled_by_default: int
    unscheduled: list[str] = Field(description="kernels that no schedule could be found for")
    in_place: dict[str, int] = Field(
        default={},
        description="calls of concatenating kernels that are left out, by task: their parts are "
        "computed in place",
    )
    left_out: list[LeftOut] = Field(
        default=[], description="rewrites that raised, or made outputs wrong"
    )
    replaced: list[ReplacedSchedule] = Field(
        default=[], description="kernels whose schedule raised, or computed something else"
    )
    other_names: dict[str, str] = Field(
        default={}, description="tasks of the kernels that are not named like their task"
    )
    allowances: float = Field(
        description="error of the outputs over what rounding may move them, the worst element; 1 "
        "is the most that is accepted"
    )
    max_error: float = Field(description="largest difference from onnxruntime, in outputs' units")
    max_relative_error: float = Field(
        description="the same over the largest magnitude in its output"
    )
    compile_s: float

    @property
    def exceptions_text(self) -> str:
        """What the library had to do without, with reasons; empty where it was nothing."""
        parts = [f"left out: {each.what} ({each.reason})" for each in self.left_out]
        parts += [f"{each.kernel} is {each.schedule} ({each.reason})" for each in self.replaced]
        return "; ".join(parts)


class LatencyStats(Part):
    """Latency of one variant over interleaved rounds, in milliseconds."""

    median_ms: float
    p10_ms: float
    p90_ms: float
    min_ms: float
    rounds: int


class Spread(Part):
    """What was taken round by round: a ratio of two variants' latencies, or a rate."""

    median: float
    p10: float
    p90: float


class CoreState(Part):
    """Rounds in which data took about the same time from core to core."""

    hand_over_us: float = Field(description="that 64 KB of each core took, median")
    rounds: int
    latency_ms: dict[str, float] = Field(description="of each variant in them, median")


class KernelRow(Part):
    """One task in the benchmark's per-task table."""

    task: str
    weight: int
    latency_ms: float | None = Field(description="best measured latency of one call")
    share: float | None = Field(description="weight * latency over the sum of all tasks")
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
        """Whether its schedule came of tuning or sharing."""
        return self.schedule not in ("default", "none", "in place")


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
        default=None, description="sum of weight * latency over the kernels measured alone"
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
    core_states: list[CoreState] = Field(
        default=[], description="where the host had the cores in the rounds, nearest first"
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
        """Those that were measured, by name; DVC and MLflow take numbers only."""
        return self.model_dump(mode="json", exclude_none=True)

    def headline(self) -> dict[str, float]:
        """The few that tell how good a result is, with units in their names."""
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
    core_states: list[CoreState] = Field(
        default=[], description="where the host had the cores in the rounds, nearest first"
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
        """The few that tell how good selective tuning is, with units in their names."""
        return {
            "used_time_pct": self.used_time_pct,
            "achieved_perf_pct": self.achieved_perf_pct,
            "achieved_perf_p10_pct": self.achieved_perf_p10_pct,
            "achieved_perf_p90_pct": self.achieved_perf_p90_pct,
        }

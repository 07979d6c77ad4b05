"""The files that pass from one stage to the next, each with its one typed reader and writer.

Every artifact is canonical JSON (sorted keys), so that equal results are equal bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fewtune.errors import InputError
from fewtune.files import canonical_json, write_text


class Part(BaseModel):
    """A piece of an artifact."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Artifact(Part):
    """One file between two stages."""

    file_name: ClassVar[str]

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Read the artifact from ``directory``.

        Raises
        ------
        InputError
            If the file is missing or is not what this version writes.
        """
        path = directory / cls.file_name
        try:
            return cls.model_validate_json(path.read_text())
        except FileNotFoundError:
            raise InputError(f"{path} is missing: run the stage that writes it") from None
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(step) for step in first["loc"])
            raise InputError(f"{path}: {place}: {first['msg']}; run its stage again") from None

    def write(self, directory: Path) -> None:
        """Write the artifact into ``directory``, whole or not at all."""
        write_text(directory / self.file_name, canonical_json(self.model_dump(mode="json")))


class Fingerprint(Artifact):
    """What a measured figure depends on besides the parameters: machine and versions."""

    file_name = "fingerprint.json"

    device: str = Field(description="CPU or GPU model the kernels run on")
    logical_cores: int
    memory_gib: int
    system: str
    target: str = Field(description="the resolved TVM target, as JSON")
    threads: int = Field(description="threads that TVM and onnxruntime both get")
    versions: dict[str, str] = Field(description="python, tvm, tvm_ffi, llvm, onnxruntime, ...")

    def identity(self) -> str:
        """Twelve hex digits that differ when any field differs."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


class LogInfo(Artifact):
    """Where the figures of a tuning log hold."""

    file_name = "log.json"

    machine: str = Field(description="CPU or GPU model")
    target: str = Field(description="the resolved TVM target, as JSON")
    threads: int
    tvm: str = Field(description="version of apache-tvm")


class TensorSpec(Part):
    """Name, static shape and numpy dtype name of a model's input or output."""

    name: str
    shape: list[int]
    dtype: str


class ImportReport(Artifact):
    """What import_model did and how far the untuned module is from onnxruntime."""

    file_name = "import.json"

    model: str
    source: str
    source_sha256: str
    opset: int
    inputs: list[TensorSpec]
    outputs: list[TensorSpec]
    parameters: int
    nodes: int = Field(description="nodes of the ONNX graph as given")
    nodes_simplified: int
    layout: Literal["NHWC", "NCHW"]
    layout_note: str
    winograd: int = Field(default=0, description="convolutions by Winograd's transforms")
    saved_flops: float = Field(
        default=0, description="operations that those products need less than the plain sums"
    )
    transposes: int = Field(description="layout transposes left in the lowered module")
    max_relative_error: float = Field(description="untuned TVM against onnxruntime")
    error_bound: float
    notes: list[str]


class TaskInfo(Part):
    """One MetaSchedule task: a fused kernel that occurs ``weight`` times in the model."""

    name: str
    workload: str = Field(description="structural hash of the task's module, hex")
    weight: int
    anchor: str = Field(description="name of the anchor block, such as conv2d_nhwc")
    operator: str = Field(description="operator family, such as conv2d, dense, pool, elementwise")
    shapes: list[list[int]] = Field(description="shapes of the task's buffers, outputs last")
    dtype: str
    flops: float = Field(description="floating-point operations of one call")
    bytes: int = Field(description="bytes of the inputs and outputs of one call")
    share: float = Field(description="estimated share of the model's time, by a roofline, 0 to 1")

    @property
    def shapes_text(self) -> str:
        """The shapes as a person reads them, such as ``1x13x13x512 1x1x512x64 1x13x13x64``."""
        return " ".join("x".join(map(str, shape)) for shape in self.shapes)


class TaskTable(Artifact):
    """The tasks of one model, heaviest first."""

    file_name = "tasks.json"

    model: str
    target: str
    tasks: list[TaskInfo]


class Cluster(Part):
    """Tasks that share schedules: the representative is tuned, it is a member too."""

    representative: str
    members: list[str]
    similarity_sum: float = Field(description="representative's similarity to the other members")


class BankDonor(Part):
    """A workload of the bank that a task takes schedules from."""

    workload: str = Field(description="structural hash of the donor's module, hex")
    origin: str = Field(description="the logs that hold it, which name the models it was tuned for")
    similarity: float = Field(description="of the two tuning spaces, 0 to 1")

    @property
    def name(self) -> str:
        """What reports call it."""
        return f"{self.origin}:{self.workload[:8]}"


class Selection(Artifact):
    """Which tasks are tuned, which take schedules from whom, which are set aside."""

    file_name = "selection.json"

    model: str
    strategy: str
    method: str
    clusters: list[Cluster]
    alone: list[str] = Field(
        default=[],
        description="tasks of clusters too small for a search of their own: schedules drawn by "
        "rule serve them, and second donors where there are any",
    )
    second_donors: dict[str, list[str]] = Field(
        default={}, description="further representatives by dependent, most similar first"
    )
    set_aside: list[str] = Field(description="tasks that only get a default schedule")
    set_aside_rule: str
    banked: dict[str, list[BankDonor]] = Field(
        default={},
        description="tasks in no cluster, since the bank has schedules for them, with their donors "
        "there, the most similar first",
    )
    note: str = Field(default="", description="what was done otherwise than asked for")

    @property
    def representatives(self) -> list[str]:
        return [cluster.representative for cluster in self.clusters]

    @property
    def dependents(self) -> dict[str, str]:
        """Each dependent task with its representative: members of clusters, no banked tasks."""
        return {
            member: cluster.representative
            for cluster in self.clusters
            for member in cluster.members
            if member != cluster.representative
        }


class SelectionTiming(Artifact):
    """How long selecting took: a file of its own, so that equal selections are equal bytes."""

    file_name = "timing.json"

    selecting_s: float = Field(description="seconds spent on design spaces and clustering")


TuneStatus = Literal["tuned", "no_valid_schedule", "crashed", "not_reached"]


class _Timed(Part):
    """A task with its default schedule's latency and its best candidate's."""

    default_ms: float | None = Field(description="latency under the default schedule")
    best_ms: float | None

    @property
    def known_ms(self) -> float | None:
        """The lesser of both; None where neither is known."""
        return min((ms for ms in (self.best_ms, self.default_ms) if ms is not None), default=None)


class TunedTask(_Timed):
    """What tuning one task came to."""

    task: str
    status: TuneStatus
    trials: int
    tuning_s: float
    failures: dict[str, int] = Field(description="failed candidates by cause")
    note: str = ""


class TuneReport(Artifact):
    """What the tune stage did. The log itself is the JSONDatabase beside this file."""

    file_name = "tune.json"

    model: str
    strategy: str
    tasks: list[TunedTask]
    trials: int
    trials_per_task: int = Field(description="as set: an average over the tuned tasks")
    tuning_s: float = Field(description="wall-clock seconds, interruptions excluded")
    search_s: float
    build_s: float
    run_s: float
    model_update_s: float
    cold_weights: bool = Field(
        default=False, description="whether kernels were measured with their weights in memory"
    )
    repeated_measurements: int = Field(
        default=0, description="made again, since the machine ran slow around the first"
    )
    stopped_by: Literal["trials", "budget", "converged", "nothing_to_tune"]


ShareStatus = Literal["shared", "drawn", "refined", "default"]


class SharedTask(_Timed):
    """How one task that was not tuned itself got its schedule."""

    task: str
    donors: list[str] = Field(description="donors tried first, most similar first")
    second_donors: list[str] = Field(description="donors tried where the first served badly")
    donor: str | None = Field(description="whose schedule won; null unless status is shared")
    donor_rank: int | None = Field(description="rank of that schedule at its donor, 1 is best")
    status: ShareStatus
    offered: int = Field(description="schedules that the donors had to give")
    valid: int
    trials: int = Field(description="candidates measured, those of the refinement included")
    refining_trials: int
    shared_ms: float | None = Field(description="best after sharing, before the refinement")
    failures: dict[str, int]
    note: str = ""


def failures_by_cause(lines: Sequence[TunedTask | SharedTask]) -> dict[str, int]:
    """Failed candidates of all these tasks, by cause."""
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(line.failures)
    return dict(sorted(counts.items()))


class ShareRound(Part):
    """What one round of sharing cost, and what it took off the model's estimated latency."""

    name: Literal["first donors", "second donors", "refinement"]
    rule: str
    tasks: int = Field(description="tasks that it measured candidates of")
    trials: int
    spent_s: float
    gained_ms: float = Field(description="sum of weight times what each task gained")


class ShareReport(Artifact):
    """What the share_schedules stage did; the JSONDatabase of all tasks lies beside it."""

    file_name = "share.json"

    model: str
    strategy: str
    tasks: list[SharedTask]
    rounds: list[ShareRound]
    trials: int
    sharing_s: float
    repeated_measurements: int = Field(
        default=0, description="made again, since the machine ran slow around the first"
    )
    stopped_by: Literal["trials", "converged", "nothing_to_tune"]


class CompileReport(Artifact):
    """The exported library and how far its outputs are from onnxruntime's."""

    file_name = "compile.json"

    model: str
    strategy: str
    library: str = Field(description="file name of the exported library, beside this file")
    scheduled_from_log: int = Field(description="kernels with a schedule from the tuning log")
    scheduled_by_default: int
    unscheduled: list[str] = Field(description="kernels that no schedule could be found for")
    max_relative_error: float
    error_bound: float
    compile_s: float


class LatencyStats(Part):
    """Latency of one variant over interleaved rounds, in milliseconds."""

    median_ms: float
    p10_ms: float
    p90_ms: float
    min_ms: float
    rounds: int


class RatioStats(Part):
    """Ratio of two variants' latencies, taken round by round."""

    median: float
    p10: float
    p90: float


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
        default=None, description="its gflops over the machine's measured peak; searched ones only"
    )
    schedule: Literal["tuned", "shared", "drawn", "refined", "default", "none"]
    donor: str | None

    @property
    def is_searched(self) -> bool:
        """Whether its schedule came of tuning or sharing."""
        return self.schedule not in ("default", "none")


class Conditions(Part):
    """Under which a table's figures hold."""

    fingerprint: Fingerprint
    date: str = Field(description="UTC, ISO 8601, to the minute")
    trials_per_task: int
    rounds: int
    seed: int


class BenchmarkReport(Artifact):
    """End-to-end latencies of one result: untuned TVM, tuned TVM, onnxruntime, interleaved."""

    file_name = "benchmark.json"

    model: str
    strategy: str
    variants: dict[str, LatencyStats] = Field(description="untuned, tuned, onnxruntime")
    speedup_over_untuned: RatioStats
    speedup_over_onnxruntime: RatioStats
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
        description="the same with every convolution counted as its plain sum; null where none "
        "goes through Winograd's transforms",
    )
    peak_gflops: float | None = Field(
        default=None, description="most the machine did in float32 multiply-adds; null for a GPU"
    )
    memory_gb_s: float | None = Field(
        default=None, description="most it moved to and from memory (STREAM triad); null for a GPU"
    )
    failures: dict[str, int] = Field(default={}, description="failed candidates by cause")
    remarks: list[str] = Field(default=[], description="tasks that went another way than planned")
    conditions: Conditions

    @property
    def peak_pct(self) -> float | None:
        """Per cent of the machine's measured peak that the whole model reaches."""
        if self.model_gflops is None or self.peak_gflops is None:
            return None
        return 100 * self.model_gflops / self.peak_gflops

    @property
    def outside_tuned_pct(self) -> float | None:
        """Per cent of the kernels' time in kernels that were not searched."""
        return None if self.tuned_share is None else 100 * (1 - self.tuned_share)


class Metrics(Artifact):
    """The flat figures of one result, for `dvc metrics` and MLflow."""

    file_name = "metrics.json"

    latency_ms: float
    untuned_latency_ms: float
    onnxruntime_latency_ms: float
    speedup_over_untuned: float
    speedup_over_onnxruntime: float
    tuning_s: float = Field(description="selecting + tuning + sharing, seconds")
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

    def write(self, directory: Path) -> None:
        """Write the figures that were measured."""
        write_text(directory / self.file_name, canonical_json(self.figures()))


class Comparison(Artifact):
    """Selective against full tuning of one model, measured interleaved in one process."""

    file_name = "compare.json"

    model: str
    full_tuning_s: float
    full_latency_ms: float
    selective_tuning_s: float
    selective_latency_ms: float
    untuned_latency_ms: float
    onnxruntime_latency_ms: float
    used_time_pct: float
    achieved_perf_pct: float = Field(description="full over selective latency, median of rounds")
    achieved_perf_p10_pct: float
    achieved_perf_p90_pct: float
    speedup_over_onnxruntime: float | None = Field(
        default=None, description="onnxruntime over selective latency, median of rounds"
    )
    full_speedup_over_onnxruntime: float | None = None
    tasks: int
    representatives: int
    full_trials: int
    selective_trials: int
    max_relative_error: float
    conditions: Conditions


class CurvePoint(Part):
    """One measured batch: where the model's estimated latency stood."""

    elapsed_s: float
    trials: int
    estimated_latency_ms: float


class Curve(Artifact):
    """Estimated model latency over tuning seconds, a point per measured batch."""

    file_name = "curve.json"

    points: list[CurvePoint]

"""The files that pass from one step to the next, each with its one typed reader and writer.

Every artifact is canonical JSON (sorted keys), so that equal results are equal bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)

from fewtune.deploy.note import Paddable
from fewtune.errors import InputError
from fewtune.util.files import canonical_json, write_text

# The virtual machine's function of a model, or of the largest of its shapes.
MAIN = "main"


class Part(BaseModel):
    """A piece of an artifact; files of other versions may have further fields."""

    model_config = ConfigDict(extra="ignore", frozen=True)


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
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            raise InputError(f"{path} is missing: run the stage that writes it") from None
        except (IsADirectoryError, NotADirectoryError) as error:
            raise InputError(f"{path} cannot be read: {error.strerror}; remove it") from None
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(step) for step in first["loc"])
            raise InputError(
                f"{path}: {place + ': ' if place else ''}{first['msg']}; run its stage again"
            ) from None

    def write(self, directory: Path) -> None:
        """Write the artifact into ``directory``, whole or not at all."""
        write_text(directory / self.file_name, canonical_json(self.model_dump(mode="json")))


class ResultArtifact(Artifact):
    """A file of one model tuned by one strategy."""

    model: str
    strategy: str


def text_sha256(text: str) -> str:
    """The SHA-256 of a text's bytes, in hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def unchanged_text(path: Path, sha256: str) -> str:
    """The text of a file for TVM, which some damaged ones crash; an artifact holds its digest.

    Raises
    ------
    InputError
        If it is missing or another one.
    """
    try:
        text = path.read_bytes()
    except OSError as fault:
        raise InputError(
            f"{path} cannot be read ({fault.strerror}): run the stage that writes it again"
        ) from None
    if hashlib.sha256(text).hexdigest() != sha256:
        raise InputError(
            f"{path} is not what its stage wrote, its digest is another one: run that stage again"
        )
    return text.decode()


class Fingerprint(Artifact):
    """The conditions of a measurement besides the parameters: machine and versions."""

    file_name = "fingerprint.json"

    # CPU or GPU model the kernels run on.
    device: str
    logical_cores: int
    system: str
    # The resolved TVM target, as JSON.
    target: str
    # Threads that TVM and onnxruntime both get.
    threads: int
    # Python, tvm, tvm_ffi, llvm, onnxruntime, ...
    versions: dict[str, str]
    # Where the device is reached; empty: on this machine, by itself.
    at: str = ""
    # What links for it, if named.
    cross_compiler: str = ""

    def identity(self) -> str:
        """A digest of all fields but the address: twelve hex digits."""
        device = self.model_dump(mode="json", exclude={"at", "cross_compiler"})
        text = json.dumps(device, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


class LogInfo(Artifact):
    """The conditions of a tuning log's times."""

    file_name = "log.json"

    # CPU or GPU model.
    machine: str
    # The resolved TVM target, as JSON.
    target: str
    threads: int
    # Version of apache-tvm.
    tvm: str
    # Which way of measuring its times are of; others came before.
    measuring: int = 1
    # Whether its schedules were predicted, their times made up.
    predicted: bool = False
    # Whether its fastest schedules' outputs were compared with what tasks compute.
    checked: bool = False
    # Of the two database files, if it was noted.
    sha256: str = ""


class Conditions(Part):
    """The conditions of a table's figures."""

    fingerprint: Fingerprint
    # UTC, ISO 8601.
    date: str = Field(default_factory=lambda: f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}")
    # Of the code that measured; + where it had been changed.
    commit: str | None = None
    trials_per_task: int
    rounds: int
    # Of each variant, which took turns by rounds.
    copies: int = 1
    # One after the other, that shared the rounds.
    processes: int = 1
    seed: int
    # Versions of the optional peers that were measured, too.
    peers: dict[str, str] = {}


class TensorSpec(Part):
    """Name, static shape and numpy dtype name of a model's input or output."""

    name: str
    shape: list[int]
    dtype: str


class UnsupportedNode(Part):
    """A node that cannot be imported; its name is its first output if it has none.

    The operator has its domain, unless that is ONNX's own.
    """

    node: str
    operator: str
    reason: str


class ShapeFunction(Part):
    """One shape of a library that holds several: its function, and what that takes and gives."""

    # Name of the virtual machine's function.
    function: str
    # The user's name of the shape, if it has one.
    regime: str = ""
    inputs: list[TensorSpec]
    outputs: list[TensorSpec]

    @property
    def text(self) -> str:
        """The inputs' shapes, such as ``x=1x3x48x320``, after the name of the shape."""
        shapes = (f"{each.name}={'x'.join(map(str, each.shape))}" for each in self.inputs)
        return " ".join([*([f"{self.regime}:"] if self.regime else []), *shapes])


class ImportReport(Artifact):
    """What import_model did and how far the untuned module is from onnxruntime."""

    file_name = "import.json"

    model: str
    source: str
    source_sha256: str
    # Of lowered.json.
    lowered_sha256: str = ""
    # Digest of inputs, outputs and bound constants; None in reports of earlier versions.
    binding: str | None = None
    opset: int
    inputs: list[TensorSpec]
    outputs: list[TensorSpec]
    # Lowest and highest value of each integer input that indexes a table inside the model.
    limits: dict[str, tuple[int, int]] = {}
    parameters: int
    # Nodes of the ONNX graph as given.
    nodes: int
    nodes_simplified: int
    layout: Literal["NHWC", "NCHW"]
    layout_note: str
    # Convolutions by Winograd's transforms.
    winograd: int = 0
    # Convolutions with filters of zeros added, products with rows or so.
    padded: int = 0
    # Optional steps that failed on it, each with its reason.
    left_out: list[str] = []
    # Layout transposes left in the lowered module.
    transposes: int
    # Error of untuned TVM's outputs over what rounding may move them, the worst element; 1 is the
    # most that is accepted.
    allowances: float
    # Largest difference from onnxruntime, in outputs' units.
    max_error: float
    # The same over the largest magnitude in its output.
    max_relative_error: float
    notes: list[str]
    # Every shape of a model with several, the largest first; the other fields are the first's.
    functions: list[ShapeFunction] = []
    paddable: list[Paddable] = []

    def all_functions(self) -> list[ShapeFunction]:
        """Every shape's function; of one shape, that one."""
        only = ShapeFunction(function=MAIN, inputs=self.inputs, outputs=self.outputs)
        return self.functions or [only]


# With fewer operations per byte, memory decides the time of a task, such as a matrix-vector
# product: data that is used only once needs no tile that keeps it, and measuring it takes longest.
_STREAMED_FLOPS_PER_BYTE = 1.0
# Products of bytes that an instruction sums where a multiply-add of floats has one.
BYTES_AN_INSTRUCTION = 4


def cost_flops(flops: float, byte_flops: float) -> float:
    """Operations as floats' that take as long, where a processor multiplies four bytes at once."""
    return flops - byte_flops + byte_flops / BYTES_AN_INSTRUCTION


class TaskInfo(Part):
    """One MetaSchedule task: a fused kernel that occurs ``weight`` times in the model."""

    name: str
    # Structural hash of the task's module, hex.
    workload: str
    weight: int
    # Name of the anchor block, such as conv2d_nhwc.
    anchor: str
    # Operator family, such as conv2d, dense, pool, elementwise.
    operator: str
    # Shapes of the task's buffers, outputs last.
    shapes: list[list[int]]
    dtype: str
    # Operations of one call, those of whole numbers as well.
    flops: float
    # What of these are of products of four bytes at once.
    byte_flops: float = 0.0
    # Bytes of the inputs and outputs of one call.
    bytes: int
    # Estimated share of the model's time, by a roofline, 0 to 1.
    share: float
    # Calls by function, in a model of several shapes; ``weight`` are those of the largest shape.
    calls: dict[str, int] = {}

    @property
    def is_of_other_shape(self) -> bool:
        """Whether only other shapes of the model than the largest call it."""
        return bool(self.calls) and MAIN not in self.calls

    @property
    def shapes_text(self) -> str:
        """The shapes as text, such as ``1x13x13x512 1x1x512x64 1x13x13x64``."""
        return " ".join("x".join(map(str, shape)) for shape in self.shapes)

    @property
    def is_streamed(self) -> bool:
        """Whether memory decides its time: its throughput is bytes a second, not operations."""
        flops = cost_flops(self.flops, self.byte_flops)
        return flops < _STREAMED_FLOPS_PER_BYTE * self.bytes


class TaskTable(Artifact):
    """The tasks of one model, heaviest first."""

    file_name = "tasks.json"

    model: str
    target: str
    tasks: list[TaskInfo]
    # Of modules.json.
    modules_sha256: str = ""


class CallSite(Part):
    """One call of a kernel in a model."""

    # Structural hash of the kernel's module, hex.
    workload: str
    # Buffers it reads.
    arguments: int
    # Which of these are constant floating-point numbers, with their shapes.
    constants: dict[int, list[int]]


class Skeleton(Artifact):
    """A model as its calls in order, without kernels and weights (`fewtune.model.call_graph`)."""

    file_name = "skeleton.json"

    # Relax module as TVM's JSON; calls a packed function a site.
    module: str
    sites: list[CallSite]
    inputs: list[TensorSpec]


class Cluster(Part):
    """Tasks that share schedules: the representative is tuned, it is a member too."""

    representative: str
    members: list[str]


class BankDonor(Part):
    """A workload of the bank that a task takes schedules from."""

    # Structural hash of the donor's module, hex.
    workload: str
    # The logs that hold it, which name the models it was tuned for.
    origin: str
    # Of the two tuning spaces, 0 to 1.
    similarity: float

    @property
    def name(self) -> str:
        """Its name in reports."""
        return f"{self.origin}:{self.workload[:8]}"


class Selection(ResultArtifact):
    """Which tasks are tuned, which take schedules from which, which are set aside."""

    file_name = "selection.json"

    method: str
    clusters: list[Cluster]
    # Representatives that take enough of the model's time, with those they stand for, to be
    # searched.
    worth: list[str] = []
    # Tasks that the predictor knows: it has chosen a schedule that is worth little less than a
    # search's.
    known: list[str] = []
    # Tasks that only get a default schedule.
    set_aside: list[str]
    # Tasks in no cluster, since the bank has schedules for them, with their donors there, the most
    # similar first.
    banked: dict[str, list[BankDonor]] = {}
    # Tasks of other shapes than the largest, with the largest's task that is most like each.
    twins: dict[str, str] = {}

    @property
    def unknown(self) -> list[str]:
        """The representatives that are worth a search, and that no predictor knows."""
        return [name for name in self.worth if name not in set(self.known)]

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

    # Seconds spent on design spaces and clustering.
    selecting_s: float


# A task is "slower_than_default" if all its valid schedules were much slower than the default one.
TuneStatus = Literal["tuned", "slower_than_default", "no_valid_schedule", "crashed", "not_reached"]


class _Timed(Part):
    """A task with its default schedule's latency and its best candidate's."""

    task: str
    # Candidates measured, and those of them that failed, by cause.
    trials: int
    failures: dict[str, int]
    note: str = ""
    # Latency under the default schedule.
    default_ms: float | None
    best_ms: float | None

    @property
    def known_ms(self) -> float | None:
        """The latency of its final schedule; None if none was measured.

        The final schedule may be the default one.
        """
        return self.best_ms if self.best_ms is not None else self.default_ms


class TunedTask(_Timed):
    """The result of tuning one task."""

    status: TuneStatus


StoppedBy = Literal["trials", "budget", "converged", "nothing_to_tune", "predicted", "interrupted"]


class _Phases(Part):
    """What measuring took, by phase, in seconds."""

    search_s: float = 0.0
    build_s: float = 0.0
    run_s: float = 0.0
    model_update_s: float = 0.0
    # Candidates run once and compared with what their task computes.
    check_s: float = 0.0


class TuneReport(ResultArtifact, _Phases):
    """What the tune stage did. The log itself is the JSONDatabase beside this file."""

    file_name = "tune.json"

    tasks: list[TunedTask]
    trials: int
    # As set: an average over the tuned tasks.
    trials_per_task: int
    # Wall-clock seconds, interruptions excluded.
    tuning_s: float
    # Of these, what the machine's host kept from a core, the cores' mean.
    stolen_s: float = 0.0
    # Whether the model's weights outgrow the caches.
    cold_weights: bool = False
    stopped_by: StoppedBy

    @property
    def is_predicted(self) -> bool:
        """Whether nothing is to be measured: schedules are predicted."""
        return self.stopped_by == "predicted"


# Known: the bank holds the same task; its schedule is taken with its time there.
# Predicted: the schedule that the predictor rates best, not measured.
ShareStatus = Literal["shared", "searched", "default", "known", "predicted"]


class SharedTask(_Timed):
    """How one task that was not tuned itself got its schedule."""

    # Whose schedule won, if shared or known.
    donor: str | None
    status: ShareStatus


def failures_by_cause(lines: Sequence[TunedTask | SharedTask]) -> dict[str, int]:
    """Failed candidates of all these tasks, by cause."""
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(line.failures)
    return dict(sorted(counts.items()))


class TuningStep(_Phases):
    """The cost of one step of tuning, and its saving of the model's estimated latency."""

    name: str
    # Tasks that it measured candidates of, or took over.
    tasks: int = 0
    trials: int = 0
    # Wall-clock seconds; what the phases leave is waiting.
    spent_s: float = 0.0
    # Sum of weight times what each task gained; null where nothing came before.
    gained_ms: float | None = None


class Prediction(Part):
    """The predictor of schedules, if none was measured."""

    # CPU that it was trained on; null: there is none.
    predictor: str | None
    # Why the schedules may be worth less than usual.
    warning: str = ""


class PredictedTask(Part):
    """A task's schedule before anything is measured."""

    task: str
    status: Literal["predicted", "known", "default"]
    # How much of its time another schedule may save, as far as the predictor can tell.
    spread: float
    # The bank's log that knows the task, and the time there.
    origin: str | None = None
    known_ms: float | None = None
    # The points rated best, as JSON (`fewtune.schedule.space.design_space.Point`).
    promising: list[tuple[int, list[Any]]] = []
    note: str = ""


class PredictReport(ResultArtifact):
    """What the predict stage chose; TVM's database files hold the schedules."""

    file_name = "predict.json"

    tasks: list[PredictedTask]
    prediction: Prediction
    # Wall-clock seconds, building and checking included.
    predicting_s: float


class ShareReport(ResultArtifact):
    """What the share_schedules stage did; TVM's database files hold the log of all tasks."""

    file_name = "share.json"

    tasks: list[SharedTask]
    # Those whose schedule was chosen in the model, with what they came to.
    representatives: list[TunedTask] = []
    rounds: list[TuningStep]
    # Why nothing was measured in the model, where that failed.
    note: str = ""
    trials: int
    sharing_s: float
    stolen_s: float = 0.0
    stopped_by: StoppedBy
    # Of one-shot tuning, which measures nothing.
    prediction: Prediction | None = None


class CurvePoint(Part):
    """The model's estimated latency after one measured batch."""

    elapsed_s: float
    trials: int
    estimated_latency_ms: float


class Curve(Artifact):
    """Estimated model latency over tuning seconds, a point per measured batch."""

    file_name = "curve.json"

    points: list[CurvePoint] = []

    @model_serializer(mode="wrap")
    def _without_none(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out a list that is empty: DVC's page cannot draw one."""
        fields: dict[str, Any] = written(self)
        return fields if self.points else {}


class LeftOut(Part):
    """An optional rewrite that was left out of a library."""

    what: str
    reason: str


class ReplacedSchedule(Part):
    """A kernel that did not keep its schedule."""

    kernel: str
    # What it has instead.
    schedule: str
    reason: str


class CompileReport(ResultArtifact):
    """The exported library and how far its outputs are from onnxruntime's."""

    file_name = "compile.json"

    # File name of the exported library, beside this file.
    library: str
    # Kernels with a schedule from the tuning log.
    scheduled_from_log: int
    scheduled_by_default: int
    # Kernels that no schedule could be found for.
    unscheduled: list[str]
    # Calls of concatenating kernels that are left out, by task: their parts are computed in place.
    in_place: dict[str, int] = {}
    # Rewrites that raised, or made outputs wrong.
    left_out: list[LeftOut] = []
    # Kernels whose schedule raised, or computed something else.
    replaced: list[ReplacedSchedule] = []
    # Tasks of the kernels that are not named like their task.
    other_names: dict[str, str] = {}
    # Error of the outputs over what rounding may move them, the worst element; 1 is the most that
    # is accepted.
    allowances: float
    # Largest difference from onnxruntime, in outputs' units.
    max_error: float
    # The same over the largest magnitude in its output.
    max_relative_error: float
    compile_s: float

    @property
    def exceptions_text(self) -> str:
        """What was left out of the library, with reasons; empty if nothing was."""
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

    @property
    def noise(self) -> float:
        """Half of the way from the tenth to the ninetieth percentile, over the median."""
        return (self.p90_ms - self.p10_ms) / 2 / self.median_ms


class Spread(Part):
    """A value over the rounds: a ratio of two variants' latencies, or a rate."""

    median: float
    p10: float
    p90: float


class KernelRow(Part):
    """One task in the benchmark's per-task table."""

    task: str
    # Of its buffers; None in reports of earlier versions.
    shapes: str | None = None
    weight: int
    # Best measured latency of one call.
    latency_ms: float | None
    # Weight * latency over the sum of all tasks; None where that is not known.
    share: float | None
    gflops: float | None
    # 10^9 bytes of its inputs and outputs a second.
    gb_s: float | None = None
    # Its operations over what the measured peak allows; searched ones only.
    peak_pct: float | None = None
    schedule: ShareStatus | Literal["tuned", "none", "in place"]
    donor: str | None

    @property
    def is_searched(self) -> bool:
        """Whether its schedule comes from tuning or sharing."""
        return self.schedule not in ("default", "none", "in place")

    def order(self) -> tuple[float, str]:
        """The key by which rows are sorted: the kernel whose calls take most time comes first."""
        return -(self.latency_ms or 0.0) * self.weight, self.task


class ShapeLatency(Part):
    """The latencies of one shape of a library that holds several, interleaved."""

    # Name of the virtual machine's function.
    function: str
    # The inputs' shapes, such as x=1x3x48x320.
    shapes: str
    # By variant, as in the benchmark of the largest shape.
    variants: dict[str, LatencyStats]
    speedup_over_onnxruntime: Spread | None = None


class BenchmarkReport(ResultArtifact):
    """End-to-end latencies of one result: untuned TVM, tuned TVM, onnxruntime, interleaved."""

    file_name = "benchmark.json"

    # Untuned, tuned, onnxruntime; openvino where it is installed and can run it.
    variants: dict[str, LatencyStats]
    speedup_over_untuned: Spread
    # Null on a board, where onnxruntime does not run.
    speedup_over_onnxruntime: Spread | None = None
    speedup_over_openvino: Spread | None = None
    max_relative_error: float
    kernels: list[KernelRow]
    # Per cent of the kernels' time in kernels that were not searched.
    outside_tuned_pct: float
    # Sum of weight * latency over the kernels.
    kernels_ms: float
    # Operations of all tasks over the tuned latency, 10^9 a second.
    model_gflops: float
    # Most the machine did in float32 multiply-adds; null for a GPU.
    peak_gflops: float | None = None
    # Of the measured peak, over the whole model.
    peak_pct: float | None = None
    # What tuning time went to.
    steps: list[TuningStep] = []
    # Failed candidates by cause.
    failures: dict[str, int] = {}
    # Tasks that went another way than planned.
    remarks: list[str] = []
    # Of the library measured.
    library_sha256: str | None = None
    # Each shape of a library that holds several; the other fields are the largest's.
    shapes: list[ShapeLatency] = []
    # What disturbed the measurement, although it was repeated; empty if nothing did.
    disturbed: str = ""
    conditions: Conditions


class Metrics(Artifact):
    """The flat figures of one result."""

    file_name = "metrics.json"

    latency_ms: float
    untuned_latency_ms: float
    # Null on a board, where onnxruntime does not run.
    onnxruntime_latency_ms: float | None = None
    speedup_over_untuned: float
    speedup_over_onnxruntime: float | None = None
    # Null where OpenVINO is not installed or cannot run the model.
    openvino_latency_ms: float | None = None
    speedup_over_openvino: float | None = None
    # Selecting + tuning + sharing, seconds.
    tuning_s: float
    # Of these, what the machine's host kept from its cores.
    tuning_stolen_pct: float | None = None
    selecting_s: float
    representative_tuning_s: float
    sharing_s: float
    compile_s: float
    tasks: int
    representatives: int
    trials: int
    max_relative_error: float
    model_gflops: float | None = None
    peak_gflops: float | None = None
    # Of the peak, over the whole model.
    peak_pct: float | None = None
    library_mb: float | None = None
    onnx_mb: float | None = None
    # From a loaded NumPy to the first output of a new process; its memory after that.
    start_s: float | None = None
    onnxruntime_start_s: float | None = None
    resident_mb: float | None = None
    onnxruntime_resident_mb: float | None = None
    # 1 if the latencies were measured beside other work; null if not.
    disturbed: int | None = None

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
            "disturbed": self.disturbed,
        }
        return {name: value for name, value in figures.items() if value is not None}

    def write(self, directory: Path) -> None:
        """Write the figures that were measured."""
        write_text(directory / self.file_name, canonical_json(self.figures()))


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
    # Full over selective latency, median of the rounds of all processes.
    achieved_perf_pct: float
    achieved_perf_p10_pct: float
    achieved_perf_p90_pct: float
    # Onnxruntime over selective latency, as achieved_perf_pct.
    speedup_over_onnxruntime: float | None = None
    # Null where OpenVINO is not installed or cannot run the model.
    openvino_latency_ms: float | None = None
    speedup_over_openvino: float | None = None
    tasks: int
    representatives: int
    max_relative_error: float
    # Of the libraries measured, by strategy.
    library_sha256: dict[str, str] = {}
    # As in a benchmark's report.
    disturbed: str = ""
    conditions: Conditions

    def headline(self) -> dict[str, float]:
        """The figures that selective tuning is judged by, with units in their names."""
        return {
            "used_time_pct": self.used_time_pct,
            "achieved_perf_pct": self.achieved_perf_pct,
            "achieved_perf_p10_pct": self.achieved_perf_p10_pct,
            "achieved_perf_p90_pct": self.achieved_perf_p90_pct,
        }

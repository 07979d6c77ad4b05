"""The imported model and its tasks."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fewtune.artifacts.base import Artifact, Part


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
    binding: str | None = Field(
        default=None,
        description="digest of inputs, outputs and bound constants; None in reports of earlier "
        "versions",
    )
    opset: int
    inputs: list[TensorSpec]
    outputs: list[TensorSpec]
    parameters: int
    nodes: int = Field(description="nodes of the ONNX graph as given")
    nodes_simplified: int
    layout: Literal["NHWC", "NCHW"]
    layout_note: str
    winograd: int = Field(default=0, description="convolutions by Winograd's transforms")
    padded: int = Field(
        default=0, description="convolutions with filters of zeros added, products with rows or so"
    )
    saved_flops: float = Field(
        default=0,
        description="operations that those products need less than the plain sums, without what "
        "added filters and rows take",
    )
    left_out: list[str] = Field(
        default_factory=list, description="optional steps that failed on it, each with its reason"
    )
    transposes: int = Field(description="layout transposes left in the lowered module")
    allowances: float = Field(
        description="error of untuned TVM's outputs over what rounding may move them, the worst "
        "element; 1 is the most that is accepted"
    )
    max_error: float = Field(description="largest difference from onnxruntime, in outputs' units")
    max_relative_error: float = Field(
        description="the same over the largest magnitude in its output"
    )
    notes: list[str]


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
    workload: str = Field(description="structural hash of the task's module, hex")
    weight: int
    anchor: str = Field(description="name of the anchor block, such as conv2d_nhwc")
    operator: str = Field(description="operator family, such as conv2d, dense, pool, elementwise")
    shapes: list[list[int]] = Field(description="shapes of the task's buffers, outputs last")
    dtype: str
    flops: float = Field(description="operations of one call, those of whole numbers as well")
    byte_flops: float = Field(
        default=0.0, description="what of these are of products of four bytes at once"
    )
    bytes: int = Field(description="bytes of the inputs and outputs of one call")
    share: float = Field(description="estimated share of the model's time, by a roofline, 0 to 1")

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


class CallSite(Part):
    """One call of a kernel in a model."""

    workload: str = Field(description="structural hash of the kernel's module, hex")
    arguments: int = Field(description="buffers it reads")
    constants: dict[int, list[int]] = Field(
        description="which of these are constant floating-point numbers, with their shapes"
    )


class Skeleton(Artifact):
    """A model as its calls in order, without kernels and weights (`fewtune.model.call_graph`)."""

    file_name = "skeleton.json"

    module: str = Field(description="Relax module as TVM's JSON; calls a packed function a site")
    sites: list[CallSite]
    inputs: list[TensorSpec]

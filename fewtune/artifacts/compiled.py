"""The report of the compiled library, with the rewrites that were left out."""

from __future__ import annotations

from pydantic import Field

from fewtune.artifacts.base import Artifact, Part


class LeftOut(Part):
    """An optional rewrite that was left out of a library."""

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
        """What was left out of the library, with reasons; empty if nothing was."""
        parts = [f"left out: {each.what} ({each.reason})" for each in self.left_out]
        parts += [f"{each.kernel} is {each.schedule} ({each.reason})" for each in self.replaced]
        return "; ".join(parts)

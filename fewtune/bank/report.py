"""The bank's own file: workloads of tuning logs, their movable schedules, their design spaces.

It holds only numbers and text, so that selecting tasks needs no compiler to read it.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field

from fewtune.artifacts import Artifact, Part
from fewtune.similarity.space_signature import (
    CategoricalSampling,
    LocationSampling,
    Sampling,
    TileSampling,
)


class BankSource(Part):
    """A tuning log that the bank was built of."""

    name: str = Field(description="its folder, below the folder of all logs")
    digest: str = Field(description="SHA-256 of its database files, the first 16 hex digits")


class BankSampling(Part):
    """One sampling instruction of a design space.

    The numbers of a tile are its extent, its parts and its largest innermost factor; those of a
    choice are its candidates; a place to compute a block at has none.
    """

    kind: Literal["tile", "choice", "place"]
    numbers: list[int]

    @classmethod
    def of(cls, sampling: Sampling) -> Self:
        """The same as plain numbers."""
        if isinstance(sampling, TileSampling):
            return cls(
                kind="tile", numbers=[sampling.extent, sampling.parts, sampling.max_innermost]
            )
        if isinstance(sampling, CategoricalSampling):
            return cls(kind="choice", numbers=sorted(sampling.candidates))
        return cls(kind="place", numbers=[])

    def sampling(self) -> Sampling:
        """The sampling instruction again."""
        if self.kind == "tile":
            extent, parts, max_innermost = self.numbers
            return TileSampling(extent, parts, max_innermost)
        if self.kind == "choice":
            return CategoricalSampling(frozenset(self.numbers))
        return LocationSampling()


class BankTrace(Part):
    """One trace of a workload's design space."""

    form: int = Field(description="place of its form in the bank's list")
    samplings: list[BankSampling]


class BankDonation(Part):
    """One schedule that can be moved to another task."""

    form: int = Field(description="place of its program's form in the bank's list")
    program: str = Field(description="which program of its workload that is, a digest")
    decisions: list[tuple[int, ...] | int] = Field(
        description="of the form's sampling instructions, in order"
    )
    candidates: list[int] = Field(description="how many each had; 0 where it is no choice")
    latency_ms: float


class BankEntry(Part):
    """One workload that was tuned, with its schedules, fastest first."""

    workload: str = Field(description="structural hash of its module, hex")
    origins: list[str] = Field(description="names of the logs that hold it")
    operator: str = Field(description="operator family, such as conv2d")
    flops: float = Field(description="floating-point operations of one call")
    shapes: list[list[int]] = Field(description="shapes of its buffers, outputs last")
    best_ms: float = Field(description="latency of its best schedule that can be moved")
    fastest_ms: float = Field(description="of its best schedule, the default one included")
    space: list[BankTrace]
    donations: list[BankDonation]

    @property
    def origin(self) -> str:
        """The logs that hold it, as text."""
        return ", ".join(self.origins)


class BankReport(Artifact):
    """The bank's workloads and schedules; the cost model's samples are in another file."""

    file_name = "bank.json"

    sources: list[BankSource]
    forms: list[list[str]] = Field(description="forms of programs, each once")
    entries: list[BankEntry] = Field(description="by workload")

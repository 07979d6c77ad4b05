"""The bank's own file: workloads of tuning logs, their movable schedules, their design spaces."""

from __future__ import annotations

from pydantic import Field

from fewtune.artifacts import Artifact, Part
from fewtune.schedule.space.transfer import Donation
from fewtune.similarity.similarity import DesignSpace


class BankSource(Part):
    """A tuning log that the bank was built of."""

    name: str = Field(description="its folder, below the folder of all logs")
    digest: str = Field(description="SHA-256 of its database files, the first 16 hex digits")


class BankEntry(Part):
    """One workload that was tuned, with its schedules, fastest first."""

    workload: str = Field(description="structural hash of its module, hex")
    origins: list[str] = Field(description="names of the logs that hold it")
    operator: str = Field(description="operator family, such as conv2d")
    flops: float = Field(description="floating-point operations of one call")
    shapes: list[list[int]] = Field(description="shapes of its buffers, outputs last")
    fastest_ms: float = Field(description="of its best schedule, the default one included")
    space: DesignSpace
    donations: list[Donation] = Field(description="schedules that can be moved to another task")
    latencies_ms: list[float] = Field(description="of the donations")

    @property
    def best_ms(self) -> float:
        """Latency of its best schedule that can be moved."""
        return self.latencies_ms[0]

    @property
    def origin(self) -> str:
        """The logs that hold it, as text."""
        return ", ".join(self.origins)


class BankReport(Artifact):
    """The bank's workloads and schedules; the cost model's samples are in another file."""

    file_name = "bank.json"

    sources: list[BankSource]
    entries: list[BankEntry] = Field(description="by workload")

"""Which tasks are tuned, and where the others take schedules from."""

from __future__ import annotations

from pydantic import Field

from fewtune.artifacts.base import Artifact, Part


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
        """Its name in reports."""
        return f"{self.origin}:{self.workload[:8]}"


class Selection(Artifact):
    """Which tasks are tuned, which take schedules from which, which are set aside."""

    file_name = "selection.json"

    model: str
    strategy: str
    method: str
    clusters: list[Cluster]
    alone: list[str] = Field(
        default=[],
        description="tasks of clusters too small for a search of their own: schedules drawn by "
        "rule serve them",
    )
    small: list[str] = Field(
        default=[],
        description="tasks a little below min_share: schedules drawn by rule serve those whose "
        "default schedule takes much of the model's measured time",
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

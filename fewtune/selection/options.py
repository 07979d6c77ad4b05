"""What can be set about the choice of tasks to tune."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, Field, model_validator


class SelectOptions(BaseModel, extra="forbid", frozen=True):
    """How the tasks to tune are chosen."""

    method: Literal["cliques", "agglomerative", "all", "predict"] = Field(
        default="cliques",
        description="maximal cliques of similar tasks (RFC #4188), average-linkage clusters, or "
        "all: every task represents itself; predict: none is tuned, each takes the schedule that "
        "the predictor rates best",
    )
    min_similarity: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="similarity rate from which two tasks (cliques) or, on average, two clusters "
        "(agglomerative) are joined; 0.5 gave 3 to 6 clusters for networks of 18 to 32 tasks",
    )
    clusters: int | None = Field(
        default=None,
        ge=1,
        description="number of clusters, instead of min_similarity; for agglomerative only",
    )
    min_share: float = Field(
        default=0.005,
        ge=0,
        lt=1,
        description="tasks below this share of the model's estimated time are set aside: they "
        "keep the schedule that was predicted, or their default one",
    )
    min_cluster_share: float = Field(
        default=0.05,
        ge=0,
        le=1,
        description="a cluster below this share is not worth a search of its own; one of a single "
        "task needs four times as much",
    )

    @model_validator(mode="after")
    def _clusters_fit_the_method(self) -> Self:
        if self.clusters is not None and self.method != "agglomerative":
            raise ValueError(
                f"clusters is for method agglomerative, not {self.method}: take it out, or change "
                "the method"
            )
        return self

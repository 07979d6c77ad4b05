"""What a user can set about tuning."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class TuneOptions(BaseModel):
    """Budget and search of the tune stage."""

    model_config = ConfigDict(extra="forbid")

    trials_per_task: int = Field(
        default=64, ge=1, le=100_000, description="trials, as an average over the tuned tasks"
    )
    budget_s: float | None = Field(
        default=None, gt=0, description="wall-clock seconds after which no batch begins"
    )
    batch_size: int = Field(default=16, ge=1, le=1024, description="candidates measured a batch")
    early_stopping_trials: int | None = Field(
        default=None, ge=1, description="end a task after so many trials without 1 % gain"
    )
    strategy: Literal["evolutionary", "annealing", "adaptive", "random", "metaschedule"] = Field(
        default="evolutionary", description="how candidates are searched"
    )
    informed_start: bool = Field(
        default=True, description="begin from tiles that fill the vector registers (CPU)"
    )
    population_ratio: float = Field(
        default=2.0, ge=1, le=100, description="candidates scored for each one measured"
    )
    generations: int = Field(default=2, ge=1, le=100, description="generations a batch")
    allocation: Literal["gradient", "round_robin"] = Field(
        default="gradient", description="how trials are spread over the tasks"
    )
    seed: int = Field(default=0, ge=0, lt=2**31)

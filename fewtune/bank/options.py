"""What can be set about the bank."""

from __future__ import annotations

from pydantic import BaseModel, Field


class BankOptions(BaseModel, extra="forbid", frozen=True):
    """What the bank is built of, and how much of it is kept."""

    logs: str | None = Field(
        default=None,
        description="folder of tuning logs, one a subfolder at any depth; null: no bank",
    )
    best: int = Field(default=8, ge=1, le=1000, description="donor schedules kept a workload")

"""What can be set about extracting tasks."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class ExtractOptions(BaseModel):
    """Nothing to set yet: kernels are one task if they are structurally equal."""

    model_config = ConfigDict(extra="forbid")

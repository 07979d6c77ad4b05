"""What can be set about extracting tasks."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class ExtractOptions(BaseModel):
    """Nothing to set yet: tasks are told apart by structural equality."""

    model_config = ConfigDict(extra="forbid")

"""Options of compilation."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class CompileOptions(BaseModel):
    """How a model is compiled and verified."""

    model_config = ConfigDict(extra="forbid")

    in_place: Literal["auto", "never"] = Field(
        default="auto",
        description="auto: on CPUs, the parts of a concatenation are computed in its buffer; "
        "never: every concatenation copies them",
    )
    allowance: float = Field(
        default=1.0, gt=0, description="multiplies what rounding may move each output element"
    )

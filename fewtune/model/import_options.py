"""What a user can set about the import of a model."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class ImportOptions(BaseModel):
    """How a model is imported."""

    model_config = ConfigDict(extra="forbid")

    layout: Literal["NHWC", "NCHW"] = Field(
        default="NHWC", description="layout of convolutions; NHWC falls back where it fails"
    )
    allowance: float = Field(
        default=1.0, gt=0, description="multiplies what rounding may move each output element"
    )
    winograd: Literal["auto", "never"] = Field(
        default="auto",
        description="auto: Winograd's transforms for the 3x3 convolutions that are expected to "
        "gain by them, on CPUs in NHWC; never: every convolution summed directly",
    )
    pad_filters: Literal["auto", "never"] = Field(
        default="auto",
        description="auto: filters of zeros beside those that fill no vector, rows and columns "
        "beside those of products that fill no tile, where that is expected to gain, on CPUs in "
        "NHWC; never: extents as given",
    )
    seed: int = Field(default=0, ge=0, description="seed of the random inputs of the check")

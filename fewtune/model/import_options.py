"""What a user can set about the import of a model."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Precision = Literal["fp32", "bf16"]


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
    precision: Precision = Field(
        default="fp32",
        description="bf16: convolutions and products with constant weights multiply in "
        "bf16 and sum in fp32, on CPUs with AVX-512 BF16, but where Winograd's transforms serve; "
        "the check allows what rounding to bf16 moves, and the import says how much that is; "
        "elsewhere, and with fp32, everything is computed in fp32",
    )
    seed: int = Field(default=0, ge=0, description="seed of the random inputs of the check")

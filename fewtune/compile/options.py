"""Options of compilation."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from fewtune.model.import_options import MOST_GROWTH


class CompileOptions(BaseModel, extra="forbid"):
    """How a model is compiled and verified."""

    in_place: Literal["auto", "never"] = Field(
        default="auto",
        description="auto: on CPUs, the parts of a concatenation are computed in its buffer; "
        "never: every concatenation copies them",
    )
    allowance: float = Field(
        default=1.0, gt=0, description="multiplies what rounding may move each output element"
    )
    most_growth: float = Field(
        default=MOST_GROWTH,
        ge=1,
        description="bytes of weights in the library for each byte of the ONNX model's; the import "
        "leaves out Winograd's transforms, whose weights are larger, where they gain least for "
        "their bytes",
    )

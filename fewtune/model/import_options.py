"""What a user can set about the import of a model."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

# Bytes of weights that a library may hold for each byte of the ONNX model's.
MOST_GROWTH = 2.0


class ImportSection(BaseModel, extra="forbid"):
    """The section ``import_model`` of ``params.yaml``."""

    layout: Literal["NHWC", "NCHW"] = Field(
        default="NHWC", description="layout of convolutions; NHWC falls back where it fails"
    )
    allowance: float = Field(
        default=1.0, gt=0, description="multiplies what rounding may move each output element"
    )
    winograd: Literal["auto", "never"] = Field(
        default="auto",
        description="auto: on CPUs in NHWC, 3x3 convolutions use Winograd's transforms where "
        "that is expected to gain; never: every convolution is computed directly",
    )
    pad_filters: Literal["auto", "never"] = Field(
        default="auto",
        description="auto: on CPUs in NHWC, filters are padded with zeros to whole vectors, and "
        "products to whole register tiles, where that is expected to gain; never: extents as given",
    )
    seed: int = Field(default=0, ge=0, description="seed of the random inputs of the check")


class ImportOptions(ImportSection):
    """How a model is imported: its section, and a bound that users know as `compile`'s."""

    most_growth: float = MOST_GROWTH

    @classmethod
    def of(cls, section: ImportSection, most_growth: float) -> ImportOptions:
        """The options of a section."""
        return cls(**section.model_dump(), most_growth=most_growth)

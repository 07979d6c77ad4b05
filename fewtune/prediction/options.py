"""What can be set about prediction."""

from __future__ import annotations

from pydantic import BaseModel, Field

from fewtune.options import PredictorChoice
from fewtune.predictor import AUTO


class PredictOptions(BaseModel, extra="forbid"):
    """How the schedules of the first library are chosen."""

    predictor: PredictorChoice = Field(
        default=AUTO, description="pretrained predictor that rates schedules, as in tune"
    )
    min_share: float = Field(
        default=0.005,
        ge=0,
        lt=1,
        description="tasks below this share of the model's estimated time keep default schedules",
    )
    seed: int = Field(default=0, ge=0, lt=2**31)

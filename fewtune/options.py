"""What a user can set about tuning and sharing."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    ValidationInfo,
    model_validator,
)

from fewtune.predictor import AUTO, NEVER, PREDEFINED, files_of


class ExtractOptions(BaseModel, extra="forbid"):
    """Nothing to set yet: kernels are one task if they are structurally equal."""


def _existing(value: str, info: ValidationInfo) -> str:
    """Refuse a predictor's path that does not exist; the context may name the folder to search."""
    root = Path((info.context or {}).get("root", "."))
    for file in files_of(root / value) if value not in (AUTO, NEVER, PREDEFINED) else ():
        if not file.is_file():
            raise ValueError(
                f"give {AUTO}, {NEVER}, {PREDEFINED}, or the path of a predictor without its "
                f"ending: there is no {value}{file.suffix}"
            )
    return value


# Packages that bring a search strategy of their own register it in this group of entry points.
STRATEGY_GROUP = "fewtune.strategies"
# The same for cost models.
COST_MODEL_GROUP = "fewtune.cost_models"
# The mode of tuning, and the method of selecting, that measure nothing.
PREDICT = "predict"
# Subclasses of `fewtune.search.strategy.Explorer`, loaded when they are used.
DEFAULT_STRATEGY = "evolutionary"
STRATEGIES = {
    DEFAULT_STRATEGY: "fewtune.search.evolutionary:EvolutionarySearch",
    "random": "fewtune.search.strategy:RandomSearch",
    "metaschedule": "fewtune.search.metaschedule:NativeSearch",
}


def _one_of(own: list[str], group: str) -> AfterValidator:
    """Refuse what neither fewtune has nor an installed package, by the name of its entry point."""

    def checked(value: str) -> str:
        known = [*own, *sorted(each.name for each in entry_points(group=group))]
        if value not in known:
            raise ValueError(f"give {', '.join(known[:-1])} or {known[-1]}")
        return value

    return AfterValidator(checked)


StrategyChoice = Annotated[str, _one_of([*STRATEGIES], STRATEGY_GROUP)]
CostModelChoice = Annotated[str, _one_of(["xgboost"], COST_MODEL_GROUP)]
PredictorChoice = Annotated[str, AfterValidator(_existing)]


class TuneOptions(BaseModel, extra="forbid"):
    """Budget and search of the tune stage."""

    mode: Literal["measure", "predict"] = Field(
        default="measure",
        description="measure candidates, or predict: every task takes the schedule that the "
        "predictor rates best, nothing is measured (select_tasks method: predict does the same)",
    )
    trials_per_task: int = Field(
        default=32, ge=1, le=100_000, description="trials, as an average over the tuned tasks"
    )
    budget_s: float | None = Field(
        default=None, gt=0, description="wall-clock seconds after which no batch begins"
    )
    batch_size: int = Field(default=16, ge=1, le=1024, description="candidates measured a batch")
    strategy: StrategyChoice = Field(
        default=DEFAULT_STRATEGY,
        description="how candidates are searched: evolutionary, annealing (AutoTVM), adaptive "
        "(Chameleon's sampling), chameleon (with its agent), genetic and tile_rl (no model), "
        "random, grid, metaschedule (TVM's own search), or one that a package registers",
    )
    cost_model: CostModelChoice = Field(
        default="xgboost",
        description="what rates programs where no predictor rates decisions: boosted trees over "
        "TVM's features, or gcn, a graph network over loops, blocks and buffers",
    )
    informed_start: bool = Field(
        default=True, description="begin from tiles that fill the vector registers (CPU)"
    )
    predictor: PredictorChoice = Field(
        default=AUTO,
        description="pretrained predictor that rates candidates: auto (of those that come with "
        "fewtune the one that knows such CPUs best, corrected by what was tuned here before), "
        "never, predefined (an analytic model, nothing in it is learnt), or a path, such as "
        "predictors/mine",
    )
    population_ratio: float = Field(
        default=1.5, ge=1, le=100, description="candidates scored for each one measured"
    )
    generations: int = Field(default=2, ge=1, le=100, description="generations a batch")
    least_gain: float = Field(
        default=0.1,
        ge=0,
        lt=1,
        description="end the run when the next batch promises less than this part of the model's "
        "latency; full tuning (select_tasks method: all) spends its whole budget",
    )
    allocation: Literal["gradient", "round_robin"] = Field(
        default="gradient", description="how trials are spread over the tasks"
    )
    start_from: str = Field(
        default="logs", description="folder of tuning logs whose best schedules are tried first"
    )
    seed: int = Field(default=0, ge=0, lt=2**31)

    @model_validator(mode="after")
    def _has_its_cost_model(self) -> Self:
        if self.strategy == "metaschedule" and self.cost_model != "xgboost":
            raise ValueError("strategy metaschedule searches with cost_model xgboost alone")
        return self

    def predicts(self, method: str) -> bool:
        """Whether nothing is measured, given how tasks were selected."""
        return PREDICT in (self.mode, method)


class ShareOptions(BaseModel, extra="forbid"):
    """Which schedules are tried beside those that tasks have, and for how long."""

    trials_per_task: int = Field(
        default=3,
        ge=1,
        le=100_000,
        description="contenders of a task in each round, beside the schedule that it has",
    )
    budget_s: float | None = Field(
        default=None, gt=0, description="wall-clock seconds after which no round begins"
    )
    least_gain: float = Field(
        default=0.001,
        gt=0,
        lt=1,
        description="a task gets contenders while they promise this part of the model's latency",
    )
    predictor: PredictorChoice = Field(
        default=AUTO, description="pretrained predictor that rates candidates, as in tune"
    )
    finals: int = Field(
        default=4,
        ge=0,
        le=100,
        description="tuned schedules of a task that take turns in the model at first; 0 or 1: "
        "each task's contenders are measured alone",
    )
    seed: int = Field(default=0, ge=0, lt=2**31)

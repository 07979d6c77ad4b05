"""What a user can set: the sections of ``params.yaml`` but that of the fingerprint."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, Field, ValidationInfo, model_validator

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


class SelectOptions(BaseModel, extra="forbid", frozen=True):
    """How the tasks to tune are chosen."""

    method: Literal["cliques", "all", "predict"] = Field(
        default="cliques",
        description="cliques of similar tasks (RFC #4188), or all: every task represents itself; "
        "predict: none is tuned, each takes the schedule that the predictor rates best",
    )
    min_similarity: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="similarity rate from which two tasks are joined; 0.5 gave 3 to 6 clusters "
        "for networks of 18 to 32 tasks",
    )
    min_share: float = Field(
        default=0.005,
        ge=0,
        lt=1,
        description="tasks below this share of the model's estimated time are set aside: they "
        "keep the schedule that was predicted, or their default one",
    )
    min_cluster_share: float = Field(
        default=0.05,
        ge=0,
        le=1,
        description="a cluster below this share is not worth a search of its own; one of a single "
        "task needs four times as much",
    )


class BankOptions(BaseModel, extra="forbid", frozen=True):
    """What the bank is built of, and how much of it is kept."""

    logs: str | None = Field(
        default=None,
        description="folder of tuning logs, one a subfolder at any depth; null: no bank",
    )
    best: int = Field(default=8, ge=1, le=1000, description="donor schedules kept a workload")


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


class BenchmarkOptions(BaseModel, extra="forbid"):
    """How long a model is measured."""

    rounds: int = Field(
        default=30,
        ge=3,
        le=10_000,
        description="most rounds of all variants in turn; fewer where every median is known to "
        "one per cent before",
    )
    copies: int = Field(
        default=3,
        ge=1,
        le=16,
        description="copies of every library, and of onnxruntime's session, that take turns, and "
        "starts of each: how fast weights are read depends on the memory that they get",
    )
    wait_s: float = Field(
        default=30,
        ge=0,
        le=86_400,
        allow_inf_nan=False,
        description="most seconds spent, while other processes or the host take cores, on waiting "
        "and on measuring disturbed rounds again; what stays disturbed is marked",
    )
    seed: int = Field(default=0, ge=0, lt=2**31, description="seed of the random inputs")


class CompareOptions(BenchmarkOptions):
    """How long two libraries of a model are measured, and how often anew."""

    processes: int = Field(
        default=4,
        ge=1,
        le=32,
        description="processes, one after the other, that share the rounds; an even number of "
        "them, for what is loaded first is slower, and they take turns in it",
    )

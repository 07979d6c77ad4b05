"""Results of tuning and sharing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from fewtune.artifacts.base import Artifact, Part

# A task is "slower_than_default" if all its valid schedules were much slower than the default one.
TuneStatus = Literal["tuned", "slower_than_default", "no_valid_schedule", "crashed", "not_reached"]


class _Timed(Part):
    """A task with its default schedule's latency and its best candidate's."""

    default_ms: float | None = Field(description="latency under the default schedule")
    best_ms: float | None

    @property
    def known_ms(self) -> float | None:
        """The latency of its final schedule; None if none was measured.

        The final schedule may be the default one.
        """
        return self.best_ms if self.best_ms is not None else self.default_ms


class TunedTask(_Timed):
    """The result of tuning one task."""

    task: str
    status: TuneStatus
    trials: int
    tuning_s: float
    failures: dict[str, int] = Field(description="failed candidates by cause")
    note: str = ""


StoppedBy = Literal["trials", "budget", "converged", "nothing_to_tune", "predicted"]
RoundName = Literal[
    "known",
    "first donors",
    "search of slow tasks",
    "duels",
    "finals in the model",
    "prediction",
]


class TuneReport(Artifact):
    """What the tune stage did. The log itself is the JSONDatabase beside this file."""

    file_name = "tune.json"

    model: str
    strategy: str
    tasks: list[TunedTask]
    trials: int
    trials_per_task: int = Field(description="as set: an average over the tuned tasks")
    tuning_s: float = Field(description="wall-clock seconds, interruptions excluded")
    stolen_s: float = Field(
        default=0.0, description="of these, what the host kept from a core, the cores' mean"
    )
    search_s: float
    build_s: float
    run_s: float
    model_update_s: float
    check_s: float = Field(
        default=0.0, description="candidates run once and compared with what their task computes"
    )
    cold_weights: bool = Field(
        default=False, description="whether kernels were measured with their weights in memory"
    )
    repeated_measurements: int = Field(
        default=0, description="made again, since the machine ran slow around the first"
    )
    stopped_by: StoppedBy

    @property
    def is_predicted(self) -> bool:
        """Whether nothing is to be measured: schedules are predicted."""
        return self.stopped_by == "predicted"


# Known: the bank holds the same task; its schedule is taken with its time there.
# Predicted: the schedule that the predictor rates best, not measured.
ShareStatus = Literal["shared", "drawn", "searched", "default", "known", "predicted"]


class SharedTask(_Timed):
    """How one task that was not tuned itself got its schedule."""

    task: str
    donors: list[str] = Field(description="most similar first")
    donor: str | None = Field(description="whose schedule won, if shared or known")
    donor_rank: int | None = Field(description="rank of that schedule at its donor, 1 is best")
    status: ShareStatus
    offered: int = Field(description="schedules that the donors had to give")
    valid: int
    trials: int = Field(description="candidates measured")
    failures: dict[str, int]
    note: str = ""


def failures_by_cause(lines: Sequence[TunedTask | SharedTask]) -> dict[str, int]:
    """Failed candidates of all these tasks, by cause."""
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(line.failures)
    return dict(sorted(counts.items()))


class TuningStep(Part):
    """The cost of one step of tuning, and its saving of the model's estimated latency."""

    name: str
    rule: str = Field(description="what it does, and when")
    tasks: int = Field(description="tasks that it measured candidates of, or took over")
    trials: int
    spent_s: float = Field(description="wall-clock seconds; what the next five leave is waiting")
    search_s: float
    build_s: float
    run_s: float
    model_update_s: float
    check_s: float = 0.0
    gained_ms: float | None = Field(
        description="sum of weight times what each task gained; null where nothing came before"
    )


class ShareRound(TuningStep):
    """One round of sharing."""

    name: RoundName
    gained_ms: float


class ModelFinal(Part):
    """The result of a task's fastest schedules in the model."""

    task: str
    contenders: int
    chosen_rank: int = Field(
        description="place of the fastest in the model among the contenders; 1 is the fastest "
        "alone, or one that is as fast and splits the usual axis"
    )
    first_ms: float = Field(
        description="one call in the model, of the first contender, with what the next kernels on "
        "its memory take for its sake"
    )
    chosen_ms: float = Field(description="the same of the fastest there")
    gained_ms: float = Field(
        description="what a run of the model gains, by the runs of a process that did not choose it"
    )


class Prediction(Part):
    """The predictor of schedules, if none was measured."""

    predictor: str | None = Field(description="CPU that it was trained on; null: there is none")
    points: int = Field(description="points that were rated, over all tasks")
    warning: str = Field(default="", description="why the schedules may be worth less than usual")


class ShareReport(Artifact):
    """What the share_schedules stage did; TVM's database files hold the log of all tasks."""

    file_name = "share.json"

    model: str
    strategy: str
    tasks: list[SharedTask]
    representatives: list[TunedTask] = Field(
        default_factory=list,
        description="those whose schedule was chosen in the model, with what they came to",
    )
    rounds: list[ShareRound]
    finals: list[ModelFinal] = Field(
        default_factory=list, description="tasks whose schedule was chosen in the model"
    )
    finals_note: str = Field(default="", description="why there are none, where they failed")
    trials: int
    sharing_s: float
    stolen_s: float = Field(
        default=0.0, description="of these, what the host kept from a core, the cores' mean"
    )
    repeated_measurements: int = Field(
        default=0, description="made again, since the machine ran slow around the first"
    )
    stopped_by: StoppedBy
    prediction: Prediction | None = Field(
        default=None, description="of one-shot tuning, which measures nothing"
    )


class CurvePoint(Part):
    """The model's estimated latency after one measured batch."""

    elapsed_s: float
    trials: int
    estimated_latency_ms: float


class Curve(Artifact):
    """Estimated model latency over tuning seconds, a point per measured batch."""

    file_name = "curve.json"

    points: list[CurvePoint] = []

    @model_serializer(mode="wrap")
    def _without_none(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out a list that is empty: DVC's page cannot draw one."""
        fields: dict[str, Any] = written(self)
        return fields if self.points else {}

"""The job of a sharing session, as it is sent to the process that runs it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

from fewtune.finals.finalists import FinalistRules
from fewtune.options import ShareOptions
from fewtune.schedule.space.transfer import Donation
from fewtune.tuning.task_state import PriorResult


@dataclass(frozen=True)
class SharingRules:
    """When default schedules are measured, which are searched, and how finalists are chosen.

    Attributes
    ----------
    doubtful : float
        A task below this part of the throughput of the best similar one measures its default
        schedule too.
    small_part : float
        A task that seems small takes schedules if its default schedule takes this part of the
        model's measured time.
    searched_gain : float
        A task is searched if the model would save this part of its time, were the task's throughput
        that of the fastest task like it.
    searched_least : float
        It is searched on if its last batch saved this part of the model's time.
    searched_patience : int
        So many batches in a row that saved less end the round.
    searched_batch, searched_trials : int
        Trials of one batch, and of all of a task.
    finalists : FinalistRules
    """

    doubtful: float = 0.9
    small_part: float = 0.005
    searched_gain: float = 0.015
    searched_least: float = 0.005
    searched_patience: int = 2
    searched_batch: int = 8
    searched_trials: int = 32
    finalists: FinalistRules = field(default_factory=FinalistRules)

    def as_json(self) -> dict[str, Any]:
        """The rules as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> SharingRules:
        """The rules that `as_json` wrote."""
        return cls(**{**given, "finalists": FinalistRules(**given["finalists"])})


RULES = SharingRules()


class BankedSchedule(NamedTuple):
    """A bank's schedule of this very task: its donor, and its time there."""

    donor: str
    latency_ms: float


@dataclass(frozen=True)
class ShareJob:
    """The work of a sharing session.

    Attributes
    ----------
    takers : dict of list of str
        By task, the donors that it takes schedules from.
    donations : dict of list of Donation
        By donor, best first.
    known : dict of BankedSchedule
        By task: schedules that are not measured again.
    tuned : dict of PriorResult
        The tuned tasks: similar tasks are compared with their throughput, and their best schedules
        take part in finals.
    options : ShareOptions
    bank : Path, optional
        Folder of a bank: the cost model learns from it.
    model : Path, optional
        The tasks' folder, with the model's skeleton, for finals in the model.
    cold_weights : bool
        Whether the tasks were tuned with their weights in memory.
    small : list of str
        Takers that only take a schedule if their default takes much of the model's time.
    twins : list of str
        Takers of other shapes of the model: in the end they take what their twins came to.
    rules : SharingRules
    """

    takers: dict[str, list[str]]
    donations: dict[str, list[Donation]]
    known: dict[str, BankedSchedule]
    tuned: dict[str, PriorResult]
    options: ShareOptions
    bank: Path | None = None
    model: Path | None = None
    cold_weights: bool = False
    small: list[str] = field(default_factory=list)
    twins: list[str] = field(default_factory=list)
    rules: SharingRules = field(default_factory=SharingRules)

    def as_json(self) -> dict[str, Any]:
        """The job as JSON values. A fleet sends the folders named ``bank`` and ``model`` along."""
        return {
            "takers": self.takers,
            "donations": {
                name: [donation.as_json() for donation in each]
                for name, each in self.donations.items()
            },
            "known": self.known,
            "tuned": {name: found.as_json() for name, found in self.tuned.items()},
            "options": self.options.model_dump(mode="json"),
            "bank": None if self.bank is None else str(self.bank),
            "model": None if self.model is None else str(self.model),
            "cold_weights": self.cold_weights,
            "small": self.small,
            "twins": self.twins,
            "rules": self.rules.as_json(),
        }

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> Self:
        """The job that `as_json` wrote."""
        return cls(
            takers=given["takers"],
            donations={
                name: [Donation.from_json(entry) for entry in each]
                for name, each in given["donations"].items()
            },
            known={name: BankedSchedule(*pair) for name, pair in given["known"].items()},
            tuned={name: PriorResult.from_json(entry) for name, entry in given["tuned"].items()},
            options=ShareOptions.model_validate(given["options"]),
            bank=None if given["bank"] is None else Path(given["bank"]),
            model=None if given["model"] is None else Path(given["model"]),
            cold_weights=given["cold_weights"],
            small=given["small"],
            twins=given["twins"],
            rules=SharingRules.from_json(given["rules"]),
        )

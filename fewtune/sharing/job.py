"""What a sharing session is to do, as it crosses to the process that does it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from fewtune.options import ShareOptions
from fewtune.schedule.space.transfer import Donation
from fewtune.sharing.rules import SharingRules
from fewtune.tuning.task_state import PriorResult


class BankedSchedule(NamedTuple):
    """A schedule of a task itself: the donor that has it, and the time that it had there."""

    donor: str
    latency_ms: float


@dataclass(frozen=True)
class ShareJob:
    """What a sharing session is to do.

    Attributes
    ----------
    takers : dict of list of str
        By task, the donors that it takes schedules from.
    donations : dict of list of Donation
        By donor, best first.
    known : dict of BankedSchedule
        By task: what needs no measuring.
    tuned : dict of PriorResult
        The tasks that were tuned: what they reach is what similar tasks are held to, and their
        best take part in finals.
    options : ShareOptions
    bank : Path, optional
        What `fewtune.bank` wrote: the cost model learns from it.
    model : Path, optional
        The tasks' own folder, with the model's skeleton: what the finals in the model need.
    cold_weights : bool
        As the tasks were tuned.
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
            "rules": self.rules.as_json(),
        }

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> ShareJob:
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
            rules=SharingRules.from_json(given["rules"]),
        )

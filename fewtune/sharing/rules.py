"""Rules of sharing that are no options: only tests and studies vary them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from fewtune.finals.finalists import FinalistRules


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

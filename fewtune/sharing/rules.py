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
    searched_part, searched_rate : float
        A task is searched if it keeps its default schedule, takes this part of the model's time,
        and is below this part of the highest throughput of any task.
    searched_trials : int
        Trials of such a search.
    finalists : FinalistRules
    """

    doubtful: float = 0.9
    searched_part: float = 0.05
    searched_rate: float = 0.5
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

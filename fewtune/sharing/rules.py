"""Rules of sharing that are no options: only tests and studies vary them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from fewtune.finals.finalists import FinalistRules


@dataclass(frozen=True)
class SharingRules:
    """When a task's default schedule is measured, and how finalists are chosen.

    Attributes
    ----------
    doubtful : float
        A task below this part of the throughput of the best similar one measures its default
        schedule too.
    finalists : FinalistRules
    """

    doubtful: float = 0.9
    finalists: FinalistRules = field(default_factory=FinalistRules)

    def as_json(self) -> dict[str, Any]:
        """The rules as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> SharingRules:
        """The rules that `as_json` wrote."""
        return cls(given["doubtful"], FinalistRules(**given["finalists"]))


RULES = SharingRules()

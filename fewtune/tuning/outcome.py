"""What became of a candidate, and where the time went that it took."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fewtune.tuning.handle import Failure


@dataclass(frozen=True)
class Outcome:
    """What became of one candidate: its times, or the cause of its failure.

    Attributes
    ----------
    run_s : list of float or None
        Seconds of one call, a sample a repeat, by the scale of its task's others.
    cause : str or None
    message : str
    pace : float
        How many times as long it took in fact (`fewtune.tuning.yardstick`).
    """

    run_s: list[float] | None
    cause: str | None = None
    message: str = ""
    pace: float = 1.0

    @staticmethod
    def failed(failure: Failure) -> Outcome:
        """The outcome of a candidate that was not measured."""
        return Outcome(None, failure.cause, failure.message)

    @property
    def median_s(self) -> float:
        """Median seconds of one call; infinite for a failed candidate."""
        return statistics.median(self.run_s) if self.run_s else float("inf")


@dataclass
class Phases:
    """Wall-clock seconds by phase."""

    search_s: float = 0.0
    build_s: float = 0.0
    run_s: float = 0.0
    model_update_s: float = 0.0

    def total_s(self) -> float:
        return self.search_s + self.build_s + self.run_s + self.model_update_s

    def add(self, other: Phases) -> None:
        for name in vars(self):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def times(self, part: float) -> Phases:
        """A part of each."""
        return Phases(**{name: part * value for name, value in vars(self).items()})

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the seconds of a block to one phase."""
        began_s = time.perf_counter()
        try:
            yield
        finally:
            setattr(self, name, getattr(self, name) + time.perf_counter() - began_s)

    def as_json(self) -> dict[str, float]:
        return {name: round(value, 4) for name, value in vars(self).items()}

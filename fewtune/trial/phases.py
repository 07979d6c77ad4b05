"""The time of tuning by phase."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Phases:
    """Wall-clock seconds by phase."""

    search_s: float = 0.0
    build_s: float = 0.0
    run_s: float = 0.0
    model_update_s: float = 0.0
    check_s: float = 0.0

    def total_s(self) -> float:
        return sum(vars(self).values())

    def add(self, other: object) -> None:
        """Add the phases of another, or of what has the same fields."""
        for name in vars(self):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def times(self, part: float) -> Phases:
        """The same part of each phase."""
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

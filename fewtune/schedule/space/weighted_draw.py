"""Alternatives drawn at random, with a weight for their expected speed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Generic, TypeVar

import numpy as np

# The weight of an alternative is its expected speed to this power.
_KEENNESS = 8

_Alternative = TypeVar("_Alternative")


@dataclass(frozen=True)
class Chances(Generic[_Alternative]):
    """Alternatives, and how likely each is drawn.

    A search draws hundreds of points for each one that it measures, a dozen decisions each:
    numpy's ``choice`` takes ten times as long for so few alternatives.

    Attributes
    ----------
    alternatives : tuple
    bounds : tuple of float
        Running sums of their likelihoods, which need not come to 1.
    """

    alternatives: tuple[_Alternative, ...]
    bounds: tuple[float, ...]

    @staticmethod
    def of(alternatives: Iterable[_Alternative], speeds: Iterable[float]) -> Chances[_Alternative]:
        """Alternatives by the speed that is expected of each; at least one."""
        keen = accumulate(float(speed) ** _KEENNESS for speed in speeds)
        return Chances(tuple(alternatives), tuple(keen))

    def draw(self, random: np.random.Generator) -> _Alternative:
        """One of them."""
        place = bisect_right(self.bounds, random.random() * self.bounds[-1])
        # The product may be rounded up to the last bound.
        return self.alternatives[min(place, len(self.alternatives) - 1)]

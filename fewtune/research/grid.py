"""Grid search: every point of the space once, in strides that spread over all of it.

Points are numbered, with a digit for every decision. The walk has a stride that has no factor in
common with their count, so that it visits each point once and its first points are far apart.
AutoTVM's ``GridSearchTuner`` visits them in order; here a small budget covers the space evenly.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd, prod

from fewtune.schedule.space.design_space import CATEGORICAL, LOCATION, TILE, Choice, Decision, Point
from fewtune.search.scorer import Proposal
from fewtune.search.strategy import Explorer

# The golden section: multiples of it spread most evenly over a line.
_GOLDEN = 0.6180339887498949


class GridSearch(Explorer):
    """Proposes each point once; measurements change nothing."""

    uses_model = False

    _next = 0

    def propose(self, count: int) -> list[Proposal]:
        found: list[Proposal] = []
        taken: set[Point] = set()
        size = self.size
        while len(found) < count and self._next < size:
            wanted = min(count - len(found), size - self._next)
            steps = range(self._next, self._next + wanted)
            points = iter([self.point_at(step) for step in steps])
            self._next += wanted
            last: list[Point] = []

            def draw(points: Iterator[Point] = points, last: list[Point] = last) -> Point:
                last[:] = [next(points, None) or last[0]]
                return last[0]

            found += self.gather(draw, wanted, taken)
        return found

    @property
    def size(self) -> int:
        """Points of the space."""
        return sum(prod(map(_ways, program.choices)) for program in self.space.programs)

    def point_at(self, step: int) -> Point:
        """The point of a step of the walk."""
        size = self.size
        place = step * _stride(size) % size
        for program in self.space.programs:
            held = prod(map(_ways, program.choices))
            if place < held:
                break
            place -= held
        decisions: list[Decision | None] = []
        for choice in program.choices:
            place, digit = divmod(place, _ways(choice))
            decisions.append(_decision(choice, digit))
        return Point(program.number, tuple(decisions))


def _stride(size: int) -> int:
    stride = max(1, round(size * _GOLDEN))
    while gcd(stride, size) != 1:
        stride += 1
    return stride


def _ways(choice: Choice) -> int:
    """The number of decisions of a choice; 1 for a location, which is drawn with the schedule."""
    if choice.kind == TILE:
        return max(1, len(choice.ways))
    return max(1, len(choice.values)) if choice.kind == CATEGORICAL else 1


def _decision(choice: Choice, digit: int) -> Decision | None:
    if choice.kind == TILE:
        return choice.ways[digit] if choice.ways else choice.default
    if choice.kind == CATEGORICAL:
        return digit
    return None if choice.kind == LOCATION else choice.default

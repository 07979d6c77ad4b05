"""Grid search: every point of the space once, in strides that spread over all of it.

Points are numbered, with a digit for every decision. The walk has a stride that has no factor in
common with their count, so that it visits each point once and its first points are far apart.
AutoTVM's ``GridSearchTuner`` visits them in order; here a small budget covers the space evenly.
"""

from __future__ import annotations

from itertools import chain, repeat
from math import gcd, prod

from fewtune.schedule.space.design_space import LOCATION, Choice, Decision, Point, Program
from fewtune.search import Explorer, Proposal

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
            steps = range(self._next, min(self._next + count - len(found), size))
            points = [self.point_at(step) for step in steps]
            self._next += len(points)
            # After the last point nothing is drawn but what is known.
            draws = chain(points, repeat(points[-1]))
            found += self.gather(draws.__next__, len(points), taken)
        return found

    @property
    def size(self) -> int:
        """Points of the space."""
        return sum(_points(program) for program in self.space.programs)

    def point_at(self, step: int) -> Point:
        """The point of a step of the walk."""
        size = self.size
        place = step * _stride(size) % size
        for program in self.space.programs:
            held = _points(program)
            if place < held:
                break
            place -= held
        decisions: list[Decision | None] = []
        for choice in program.choices:
            ways = _ways(choice)
            place, digit = divmod(place, len(ways))
            decisions.append(ways[digit])
        return Point(program.number, tuple(decisions))


def _points(program: Program) -> int:
    return prod(len(_ways(choice)) for choice in program.choices)


def _stride(size: int) -> int:
    stride = max(1, round(size * _GOLDEN))
    while gcd(stride, size) != 1:
        stride += 1
    return stride


def _ways(choice: Choice) -> tuple[Decision | None, ...]:
    """The decisions of a choice; a location is drawn with the schedule."""
    return choice.ways or (None if choice.kind == LOCATION else choice.default,)

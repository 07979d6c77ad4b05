"""Evolutionary search over the decisions of MetaSchedule's design spaces.

The method is MetaSchedule's (Shao et al. 2022) and Ansor's: mutate the decisions of good
schedules, and let the cost model choose the candidates. It differs from stock MetaSchedule: the
first batch comes from points that fill the vector registers (`fewtune.schedule.space.prior`); the
population is in proportion to the batch (stock: always 512 and four generations); decisions of two
good schedules are also crossed; every candidate's features are extracted once. If the predictor
knows the task, it rates generations of points, by the hundred. Schedules are then made only of the
points that are measured.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fewtune.schedule.space.design_space import Point
from fewtune.schedule.space.prior import TileKey
from fewtune.search.scorer import Guide, Proposal
from fewtune.search.strategy import Explorer

# Part of a batch that is chosen without the model.
_UNSCORED = 0.1
_CROSSED = 0.2
# Part of the children that differ from a parent in the register tile.
_RETILED = 0.2
# Part of a batch for register tiles that nothing measured has, as long as there are good ones: they
# differ by more than a cost model of a few trials can predict.
_UNTRIED = 0.25
# Fastest measured points that have children.
_PARENTS = 8
# The predictor chooses among so many drawn points for each candidate of a batch, as many mutated
# ones, and half as many children of those that it rates best. With batches of four, pools twice as
# large found no better candidates, and took about as long (four models).
_LOOKED_AT_FOR_EACH, _LEAST_LOOKED_AT = 8, 64
# The first batch of a task is chosen from so many times its size, if the model is trained.
_FIRST_CHOICE = 3


class EvolutionarySearch(Explorer):
    """Mutates and crosses the fastest schedules; the model chooses among the children."""

    # Schedules made for each one measured, if points are rated before schedules are made.
    made_for_each = 1

    def propose(self, count: int) -> list[Proposal]:
        if self.guide is not None:
            return self._guided(self.guide, count)
        parents = self.fastest(_PARENTS)
        taken: set[Point] = set()
        if not parents:
            wanted = count * (_FIRST_CHOICE if self.judge.trained else 1)
            return self.select(*self.scored(self.gather(self.draw, wanted, taken)), count)
        size = max(count, round(count * self.options.population_ratio))
        # New random points keep the search diverse if all parents descend from one lucky point.
        newcomers = self.gather(self.draw, max(1, size // 4), taken)
        children = self.gather(self.child_of(parents), size, taken)
        pool, scores = self.scored(newcomers + children)
        for _ in range(self.options.generations - 1):
            if not self.judge.trained:
                break
            order = np.argsort(-scores, kind="stable")[:_PARENTS]
            elders = [pool[i].point for i in order] + parents[:2]
            children, more = self.scored(self.gather(self.child_of(elders), size // 2, taken))
            pool, scores = pool + children, np.concatenate([scores, more])
        return self.select(pool, scores, count)

    def _guided(self, guide: Guide, count: int) -> list[Proposal]:
        """Generations of points; schedules are made only of the most promising."""
        parents = self.fastest(_PARENTS)
        looked_at = max(_LEAST_LOOKED_AT, _LOOKED_AT_FOR_EACH * count)
        rated: dict[Point, float] = {}
        pool = [self.draw() for _ in range(looked_at)]
        if parents:
            child = self.child_of(parents)
            pool += [child() for _ in range(looked_at)]
        for _ in range(self.options.generations - 1):
            elders = guide.ordered(pool, rated=rated)[:_PARENTS] + parents[:2]
            child = self.child_of(elders)
            pool += [child() for _ in range(looked_at // 2)]
        ranked = iter(guide.ordered(self.unknown(pool), self.times_s, rated))
        taken: set[Point] = set()

        def promising() -> Point:
            return next(ranked, None) or self.draw()

        if self.made_for_each > 1:
            made = self.gather(promising, self.made_for_each * count, taken)
            return self.select(*self.scored(made), count)
        made = self.gather(promising, count - round(_UNSCORED * count), taken)
        return made + self.gather(self.draw, count - len(made), taken)

    def child_of(self, parents: list[Point]) -> Callable[[], Point]:
        """Draws children; a parent of a better rank has more of them."""
        weights = 1.0 / np.arange(1, len(parents) + 1)
        weights /= weights.sum()

        def draw() -> Point:
            first = parents[int(self.random.choice(len(parents), p=weights))]
            if self.random.random() < _CROSSED:
                second = parents[int(self.random.choice(len(parents), p=weights))]
                child = self.space.crossed(first, second, self.random)
                if child != first:
                    return child
            if self.is_informed and self.random.random() < _RETILED:
                child = self.prior.retiled(first, self.random)
                if child != first:
                    return child
            child = self.space.changed(first, self.random)
            return self.space.changed(child, self.random) if self.random.random() < 0.3 else child

        return draw

    def select(self, pool: list[Proposal], scores: np.ndarray, count: int) -> list[Proposal]:
        """The best by the model, and a few chosen without it."""
        if len(pool) <= count or not self.judge.trained:
            return pool[:count]
        order = [int(i) for i in np.argsort(-scores, kind="stable")]
        unscored = max(1, round(_UNSCORED * count))
        # The model chooses at least one.
        places = max(0, min(max(1, round(_UNTRIED * count)), count - unscored - 1))
        untried = self._untried(pool, order)[:places]
        order = untried + [i for i in order if i not in untried]
        chosen, rest = order[: count - unscored], order[count - unscored :]
        picked = self.random.choice(len(rest), size=min(unscored, len(rest)), replace=False)
        return [pool[i] for i in [*chosen, *(rest[int(p)] for p in picked)]]

    def _untried(self, pool: list[Proposal], order: list[int]) -> list[int]:
        """Places of one proposal for each good register tile that nothing measured has."""
        if not self.is_informed:
            return []
        tried = {self.prior.tile_of(point) for point in self.times_s}
        best: dict[TileKey, int] = {}
        for place in order:
            best.setdefault(self.prior.tile_of(pool[place].point), place)
        speeds = {best[tile]: self.prior.expected_speed(tile) for tile in best if tile not in tried}
        good = [place for place, speed in speeds.items() if speed > 0]
        return sorted(good, key=lambda place: -speeds[place])

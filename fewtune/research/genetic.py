"""Genetic search: the fitness is the measured speed; no model is used.

Method: AutoTVM's ``GATuner`` (Chen et al. 2018). A generation descends from the one before and the
best so far. Parents are drawn by their fitness, a child takes each decision from one of two, and
each decision may mutate. AutoTVM's generations have 100 members, more than a whole budget here. So
a generation is a batch, and those of the last few batches are parents.
"""

from __future__ import annotations

import math

import numpy as np

from fewtune.schedule.space.design_space import Point
from fewtune.schedule.space.search_space import random_decision
from fewtune.search import Explorer, Proposal

_ELITES = 3
# AutoTVM's chance of each decision to be drawn anew.
_MUTATION = 0.1
# Batches that parents come from.
_LIVING = 2


class GeneticSearch(Explorer):
    """Population, elites, crossing and mutation."""

    uses_model = False

    def propose(self, count: int) -> list[Proposal]:
        parents, fitness = self._population(count)
        if not parents:
            return self.gather(self.draw, count)
        taken: set[Point] = set()
        children = self.gather(lambda: self._child(parents, fitness), count, taken)
        return children + self.gather(self.draw, count - len(children), taken)

    def _population(self, count: int) -> tuple[list[Point], np.ndarray]:
        """The parents, and the probability of each: its speed over the best one's."""
        living = [p for p, s in list(self.times_s.items())[-_LIVING * count :] if math.isfinite(s)]
        members = list(dict.fromkeys([*self.fastest(_ELITES), *living]))
        if not members:
            return [], np.empty(0)
        times_s = np.array([self.times_s[point] for point in members])
        speeds = times_s.min() / times_s
        return members, speeds / speeds.sum()

    def _child(self, parents: list[Point], fitness: np.ndarray) -> Point:
        first, second = (int(i) for i in self.random.choice(len(parents), size=2, p=fitness))
        child = self.space.crossed(parents[first], parents[second], self.random)
        choices = self.space.programs[child.program].choices
        decisions = (
            random_decision(choice, self.random) if self.random.random() < _MUTATION else now
            for choice, now in zip(choices, child.decisions, strict=True)
        )
        return Point(child.program, tuple(decisions))

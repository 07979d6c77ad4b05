"""Simulated annealing on the cost model: AutoTVM's search, over MetaSchedule's decisions.

Method: Chen et al. 2018, "Learning to Optimize Tensor Programs", section 3.3. Parallel chains walk
through the space; a step up in the model's score is always taken, a step down with a probability
that falls with the temperature. The best points on the way, measured ones left out, are the next
batch. The chains live on from batch to batch.
"""

from __future__ import annotations

import numpy as np

from fewtune.schedule.space.design_space import Point
from fewtune.search import Explorer, Proposal

_STEPS = 4
_UNSCORED = 0.05


class SimulatedAnnealing(Explorer):
    """Chains that climb the model's scores."""

    _chains: list[Proposal] | None = None

    def propose(self, count: int) -> list[Proposal]:
        if not self.judge.trained:
            return self.gather(self.draw, count)
        visited = self.walk(max(count, round(count * self.options.population_ratio / 2)))
        order = sorted(visited, key=lambda point: -visited[point][1])
        unscored = max(1, round(_UNSCORED * count))
        best = [visited[point][0] for point in order[: count - unscored]]
        taken = {proposal.point for proposal in best}
        return best + self.gather(self.draw, count - len(best), taken)

    def walk(self, chains: int) -> dict[Point, tuple[Proposal, float]]:
        """Let the chains walk; return the visited, unmeasured points with their scores."""
        if self._chains is None:
            self._chains = self.gather(self.draw, chains)
        walkers, scores = self.scored(self._chains)
        visited = {w.point: (w, float(s)) for w, s in zip(walkers, scores, strict=True)}
        for step in range(_STEPS):
            temperature = 1.0 - step / _STEPS
            # A chain may pass through measured points, so they are not excluded here.
            moved = [self._neighbour(walker) for walker in walkers]
            moved, reached = self.scored(moved)
            rise = (reached - scores) / max(temperature * max(float(np.std(scores)), 1e-6), 1e-9)
            taken = self.random.random(len(rise)) < np.exp(np.minimum(rise, 0.0))
            walkers = [new if t else old for new, old, t in zip(moved, walkers, taken, strict=True)]
            scores = np.where(taken, reached, scores)
            visited.update((m.point, (m, float(s))) for m, s in zip(moved, reached, strict=True))
        self._chains = walkers
        return {point: found for point, found in visited.items() if point not in self.times_s}

    def _neighbour(self, walker: Proposal) -> Proposal:
        for _ in range(4):
            point = self.space.changed(walker.point, self.random)
            made = self.space.make(point, seed=int(self.random.integers(1, 2**30)))
            if made.schedule is not None:
                return Proposal(made.schedule, made.point)
        return walker

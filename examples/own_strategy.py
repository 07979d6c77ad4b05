"""A search strategy of your own: hill climbing, one decision changed at a time.

fewtune finds it through an entry point. Put this file into a package of yours and register it in
that package's ``pyproject.toml``::

    [project.entry-points."fewtune.strategies"]
    hill_climbing = "own_strategy:HillClimbing"

Then use it by name: ``fewtune run MODEL --set tune.strategy=hill_climbing``, or
``fewtune.tune(MODEL, options={"tune": {"strategy": "hill_climbing"}})``.
"""

from __future__ import annotations

from fewtune.schedule.space.design_space import Point
from fewtune.search import Explorer, Proposal


class HillClimbing(Explorer):
    """Neighbours of the fastest schedule so far; random ones before there is any."""

    uses_model = False

    def propose(self, count: int) -> list[Proposal]:
        """Propose ``count`` new candidates; fewer where the space is used up."""
        return self.gather(self._neighbour, count)

    def _neighbour(self) -> Point:
        fastest = self.fastest(1)
        if not fastest:
            return self.space.random_point(self.random)
        return self.space.changed(fastest[0], self.random)

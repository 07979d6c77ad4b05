"""Random search: the baseline that any other strategy has to beat."""

from __future__ import annotations

from fewtune.search.scorer import Proposal
from fewtune.search.strategy import Explorer


class RandomSearch(Explorer):
    """Draws all decisions of a choice with equal probability; uses no model."""

    uses_model = False

    def propose(self, count: int) -> list[Proposal]:
        return self.gather(lambda: self.space.random_point(self.random), count)

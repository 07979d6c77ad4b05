"""What all strategies share: distinct candidates, made and scored, and a memory of outcomes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import repeat

import numpy as np
import tvm_ffi

from fewtune.options import TuneOptions
from fewtune.predictor.predictor import Predictor
from fewtune.schedule.space.design_space import Point
from fewtune.schedule.space.prior import Prior
from fewtune.schedule.space.search_space import SearchSpace
from fewtune.search.cost_model import BoostedTrees, CostModel
from fewtune.search.scorer import Guide, Proposal, Scorer

# A space may be smaller than a batch: after so many draws without a new point, it is used up.
_MOST_DRAWS = 12


@dataclass
class Knowledge:
    """The cost model and the predictor of a run, shared by all its tasks.

    Attributes
    ----------
    cost_model : CostModel
    predictor : Predictor or None
    is_cold : bool
        Whether weights are not in the caches when a task begins.
    """

    cost_model: CostModel = field(default_factory=BoostedTrees)
    predictor: Predictor | None = None
    is_cold: bool = False


def remade(
    space: SearchSpace, points: list[Point], times_s: list[float]
) -> tuple[list[Proposal], list[float]]:
    """Measured points as proposals, with their seconds; points that do not apply are left out."""
    made = [one.schedule for one in space.make_all(points, [1] * len(points))]
    usable = [place for place, schedule in enumerate(made) if schedule is not None]
    return [Proposal(made[i], points[i]) for i in usable], [times_s[i] for i in usable]


class Explorer:
    """The base class of strategies.

    Parameters
    ----------
    space : SearchSpace
    knowledge : Knowledge
    options : TuneOptions
    seed : int

    Attributes
    ----------
    scorer : Scorer
        The cost model, bound to the task.
    times_s : dict
        Seconds by point, of everything measured; infinite where it failed.
    rejected : set of Point
        Not proposed again: they give no schedule, or a program that is known.
    """

    uses_model = True

    def __init__(
        self, space: SearchSpace, knowledge: Knowledge, options: TuneOptions, seed: int
    ) -> None:
        self.space = space
        self.knowledge = knowledge
        self.scorer = Scorer(space, knowledge.cost_model)
        self.options = options
        self.random = np.random.default_rng(seed)
        self.times_s: dict[Point, float] = {}
        self.rejected: set[Point] = set()
        self._measured: set[int] = set()
        # Programs that were made for the batch under way.
        self._made: set[int] = set()
        self._first: list[Point] = []

    @cached_property
    def prior(self) -> Prior:
        """Good points to begin from; made when first used, since it takes a while."""
        return Prior(self.space)

    @cached_property
    def guide(self) -> Guide | None:
        """Rates points before schedules are made of them; None if the predictor cannot."""
        knowledge = self.knowledge
        if knowledge.predictor is None or not self.options.informed_start:
            return None
        return Guide.of(self.space, self.prior, knowledge.predictor, is_cold=knowledge.is_cold)

    @property
    def judge(self) -> Guide | Scorer:
        """Rates candidates: the guide if there is one, else the cost model."""
        return self.guide or self.scorer

    @property
    def is_informed(self) -> bool:
        """Whether there is a rule for this task, and it is to be used."""
        return self.options.informed_start and self.prior.informed

    def begin_from(self, points: Iterable[Point]) -> None:
        """Measure these points first, in place of others that were given: an earlier run's best."""
        self._first = list(points)

    def next_batch(self, count: int) -> list[Proposal]:
        """The next batch, at most ``count``; empty when the space is used up."""
        self._made.clear()
        given, self._first = self._first[:count], self._first[count:]
        proposals: list[Proposal] = []
        taken: set[Point] = set()
        for point in given:
            proposals.extend(self.gather(repeat(point).__next__, 1, taken))
        if len(proposals) < count:
            known = {proposal.point for proposal in proposals}
            proposals += [p for p in self.propose(count - len(proposals)) if p.point not in known]
        return proposals

    def propose(self, count: int) -> list[Proposal]:
        """The strategy's own choice of the next candidates, at most ``count``."""
        raise NotImplementedError

    def learn(self, proposals: list[Proposal], times_s: list[float]) -> None:
        """Learn from measured proposals: seconds, infinite for a failed one."""
        for proposal, time_s in zip(proposals, times_s, strict=True):
            self.times_s[proposal.point] = time_s
            self._measured.add(tvm_ffi.structural_hash(proposal.schedule.mod))
        if self.uses_model:
            self.judge.learn(proposals, times_s)

    def remember(self, points: list[Point], times_s: list[float]) -> None:
        """Take in measurements of an earlier run, and learn from them."""
        self.times_s.update(zip(points, times_s, strict=True))
        proposals, known_s = remade(self.space, points, times_s)
        if proposals:
            Explorer.learn(self, proposals, known_s)

    def fastest(self, count: int) -> list[Point]:
        """The fastest points measured, fastest first."""
        valid = [point for point, time_s in self.times_s.items() if math.isfinite(time_s)]
        return sorted(valid, key=lambda point: self.times_s[point])[:count]

    def unknown(self, points: Iterable[Point]) -> list[Point]:
        """Those of some points that were neither measured nor rejected."""
        return [p for p in points if p not in self.times_s and p not in self.rejected]

    def draw(self) -> Point:
        """A point to begin from."""
        if self.is_informed:
            return self.prior.draw(self.random)
        return self.space.random_point(self.random)

    def gather(
        self, draw: Callable[[], Point], count: int, taken: set[Point] | None = None
    ) -> list[Proposal]:
        """Make ``count`` distinct schedules that were not measured yet, from drawn points."""
        found: dict[Point, Proposal] = {}
        taken = set() if taken is None else taken
        left = _MOST_DRAWS * count
        while left > 0 and len(found) < count:
            # As many points as are missing are drawn together, and made in parallel.
            drawn: dict[Point, int] = {}
            while left > 0 and len(drawn) < count - len(found):
                point = draw()
                left -= 1
                if self.unknown([point]) and point not in taken and point not in drawn:
                    drawn[point] = int(self.random.integers(1, 2**30))
            made_all = self.space.make_all(list(drawn), list(drawn.values()))
            for point, made in zip(drawn, made_all, strict=True):
                if made.schedule is None:
                    self.rejected.add(point)
                    continue
                # A decision that was left open may be drawn so that the point is known.
                if made.point in taken or made.point in found:
                    continue
                # Two points may be one program: it is built and measured once.
                digest = tvm_ffi.structural_hash(made.schedule.mod)
                is_known = digest in self._measured or digest in self._made
                if made.point in self.times_s or is_known:
                    self.rejected.add(made.point)
                    continue
                self._made.add(digest)
                found[made.point] = Proposal(made.schedule, made.point)
        taken.update(found)
        return list(found.values())

    def scored(self, proposals: list[Proposal]) -> tuple[list[Proposal], np.ndarray]:
        """Proposals, and their scores: equal ones until the model is trained."""
        return self.judge.rate(proposals)


class RandomSearch(Explorer):
    """The baseline of every other strategy: draws each decision evenly, and uses no model."""

    uses_model = False

    def propose(self, count: int) -> list[Proposal]:
        return self.gather(lambda: self.space.random_point(self.random), count)

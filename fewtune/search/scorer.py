"""Ratings of candidates: the cost model's by their programs, the predictor's by their decisions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from fewtune.predictor.features import DecisionFeatures
from fewtune.predictor.learnt import name_of
from fewtune.predictor.predictor import Predictor
from fewtune.predictor.pretrained import TaskSamples
from fewtune.runtime.tvm import tvm
from fewtune.schedule.space.design_space import Point
from fewtune.schedule.space.prior import Prior, TileKey
from fewtune.schedule.space.search_space import SearchSpace
from fewtune.search.cost_model import CostModel
from fewtune.task.extract import workload_hash
from fewtune.trial.trial import trace_key


@dataclass(frozen=True)
class Proposal:
    """A schedule to be measured.

    Attributes
    ----------
    schedule : Schedule
    point : Point
    features : Any
        As the cost model extracted them; None before that.
    """

    schedule: tvm.s_tir.Schedule
    point: Point
    features: Any = None

    @cached_property
    def key(self) -> str:
        """Its trace as JSON text, kept since making it takes a millisecond."""
        return trace_key(self.schedule.trace)


class Scorer:
    """The cost model, bound to one task."""

    def __init__(self, space: SearchSpace, cost_model: CostModel) -> None:
        self._space = space
        self.cost_model = cost_model

    @property
    def trained(self) -> bool:
        return self.cost_model.trained

    def features(self, schedules: list[tvm.s_tir.Schedule]) -> list[Any]:
        """Features of schedules, as the cost model takes them."""
        if not schedules:
            return []
        candidates = [self._space.candidate(schedule) for schedule in schedules]
        return self.cost_model.features(self._space.context, candidates)

    def rate(self, proposals: list[Proposal]) -> tuple[list[Proposal], np.ndarray]:
        """Proposals with features, and their scores: equal ones until the model is trained."""
        extracted = self.features([proposal.schedule for proposal in proposals])
        proposals = [replace(p, features=f) for p, f in zip(proposals, extracted, strict=True)]
        if not self.trained or not proposals:
            return proposals, np.zeros(len(proposals))
        return proposals, self.cost_model.score(extracted)

    def learn(self, proposals: list[Proposal], times_s: list[float]) -> None:
        """Take in measured proposals; a failed one took infinitely long."""
        missing = [p.schedule for p in proposals if p.features is None]
        extracted = iter(self.features(missing))
        features = [p.features if p.features is not None else next(extracted) for p in proposals]
        self.cost_model.learn(self._space.module, features, times_s)


# Each further candidate of one register tile is rated lower by this, up to so many times. The
# predictor errs about tiles, so another tile teaches more.
_ALIKE, _MOST_ALIKE = 0.02, 4


class Guide:
    """Rates points by their decisions, before any schedule is made of them.

    Parameters
    ----------
    space : SearchSpace
    prior : Prior
    features : DecisionFeatures
    predictor : Predictor
        Shared by all tasks of a run.
    """

    trained = True

    def __init__(
        self, space: SearchSpace, prior: Prior, features: DecisionFeatures, predictor: Predictor
    ) -> None:
        self._prior = prior
        self._features, self.products = features, features.data_type
        self._predictor = predictor
        self._task = workload_hash(space.module)

    @staticmethod
    def of(
        space: SearchSpace, prior: Prior, predictor: Predictor, *, is_cold: bool
    ) -> Guide | None:
        """The guide of a task; None if the predictor does not know such tasks."""
        features = DecisionFeatures.if_usable(space.programs, prior.contraction, is_cold=is_cold)
        return None if features is None else Guide(space, prior, features, predictor)

    def expected(self, points: list[Point]) -> np.ndarray:
        """Logarithms of expected speeds, (points,)."""
        rows = self._features.of(points)
        return self._predictor.expected(self._task, rows, self.products)

    def rate(self, proposals: list[Proposal]) -> tuple[list[Proposal], np.ndarray]:
        """Proposals, and their expected speeds."""
        if not proposals:
            return proposals, np.zeros(0)
        return proposals, self.expected([proposal.point for proposal in proposals])

    def learn(self, proposals: list[Proposal], times_s: list[float]) -> None:
        """Take in measured proposals; a failed one took infinitely long."""
        self.learn_points([proposal.point for proposal in proposals], times_s)

    def learn_points(self, points: list[Point], times_s: list[float]) -> None:
        """Take in measured points, with their seconds."""
        self._predictor.learn(self._task, self._features.of(points), times_s, self.products)

    def sampled(self, times_s: Mapping[Point, float]) -> TaskSamples:
        """Measured points as samples for a predictor; failed ones say nothing of speed."""
        valid = {point: time_s for point, time_s in times_s.items() if math.isfinite(time_s)}
        name = name_of(self.products, self._task)
        return TaskSamples(self._features.of([*valid]), np.array([*valid.values()]), name)

    def ordered(
        self,
        points: Iterable[Point],
        known: Iterable[Point] = (),
        rated: dict[Point, float] | None = None,
    ) -> list[Point]:
        """Distinct points, the most promising first, with alternating register tiles.

        Parameters
        ----------
        points : iterable of Point
        known : iterable of Point
            Measured before: points with their register tiles are rated lower.
        rated : dict of float, optional
            Expected speeds of some points; those of the others are added. They are valid until the
            predictor learns.
        """
        distinct = list(dict.fromkeys(points))
        if not distinct:
            return []
        rated = {} if rated is None else rated
        unrated = [point for point in distinct if point not in rated]
        if unrated:
            rated.update(zip(unrated, self.expected(unrated).tolist(), strict=True))
        speeds = np.array([rated[point] for point in distinct])
        seen: Counter[TileKey] = Counter(self._prior.tile_of(point) for point in known)
        held_back = np.empty(len(distinct))
        for place in np.argsort(-speeds, kind="stable"):
            tile = self._prior.tile_of(distinct[place])
            held_back[place] = speeds[place] - _ALIKE * min(_MOST_ALIKE, seen[tile])
            seen[tile] += 1
        return [distinct[place] for place in np.argsort(-held_back, kind="stable")]


def in_turn(prior: Prior, points: list[Point], first: Point) -> list[Point]:
    """Points reordered: each register tile comes once before one comes twice.

    The predictor errs most about tiles, above all on a machine that it does not know, so a second
    schedule of one tile adds little. For ResNet 50's tasks, of 64 trials each, the fastest of the
    three that are rated best took 1.065 times the fastest of all. Of the best three of different
    tiles it took 1.043 times (geometric means; an EPYC, with a Xeon's predictor). ``first`` has had
    its turn.
    """
    seen = Counter({prior.tile_of(first): 1})
    turns = []
    for place, point in enumerate(points):
        tile = prior.tile_of(point)
        turns.append((seen[tile], place))
        seen[tile] += 1
    return [points[place] for _, place in sorted(turns)]

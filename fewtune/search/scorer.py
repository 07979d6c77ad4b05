"""Ratings of candidates: the cost model's by their programs, the predictor's by their decisions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from fewtune.runtime.tvm import tvm
from fewtune.schedule.space.design_space import Point
from fewtune.schedule.space.search_space import SearchSpace
from fewtune.search.cost_model import CostModel
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


class Judge(Protocol):
    """Rates the candidates of one task, and learns from their times."""

    @property
    def trained(self) -> bool:
        """Whether ratings mean anything yet."""

    def rate(self, proposals: list[Proposal]) -> tuple[list[Proposal], np.ndarray]:
        """Proposals with their features, and their scores: higher is faster."""

    def learn(self, proposals: list[Proposal], times_s: list[float]) -> None:
        """Take in measured proposals; a failed one took infinitely long."""


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

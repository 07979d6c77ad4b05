"""Reinforcement learning without a cost model: a policy over tiles, rewarded by what was measured.

Method: REINFORCE (Williams 1992), as in the work on matmul tiling by reinforcement learning. The
policy draws each decision by a softmax over its alternatives. A tile's logit is linear in the
logarithm of each factor and its square, so that a reward also changes similar tiles. After a batch
each weight follows the gradient of the log-probability times the advantage: the logarithm of the
speed relative to the mean of all so far.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.special import softmax

from fewtune.options import TuneOptions
from fewtune.schedule.space.design_space import CATEGORICAL, TILE, Choice, Decision, Point
from fewtune.schedule.space.search_space import SearchSpace, random_decision
from fewtune.search.scorer import Proposal
from fewtune.search.strategy import Explorer, Knowledge

_RATE = 0.4
# An advantage beyond this is of a failure.
_MOST = 2.0
# Part of the draws that the policy has no say in: it may have given up too early.
_EXPLORING = 0.1


class TileReinforcement(Explorer):
    """A policy gradient over the decisions of each program."""

    uses_model = False

    def __init__(
        self, space: SearchSpace, knowledge: Knowledge, options: TuneOptions, seed: int
    ) -> None:
        super().__init__(space, knowledge, options, seed)
        # Weights by program and choice, and a logit for each program.
        self._policy: dict[tuple[int, int], np.ndarray] = {}
        self._programs = {program.number: 0.0 for program in space.programs}

    def propose(self, count: int) -> list[Proposal]:
        return self.gather(self._drawn, count)

    def learn(self, proposals: list[Proposal], times_s: list[float]) -> None:
        super().learn(proposals, times_s)
        rewards = self._advantages(times_s)
        for proposal, reward in zip(proposals, rewards, strict=True):
            self._reinforce(proposal.point, float(reward) / max(1, len(proposals)))

    def _drawn(self) -> Point:
        if not self._policy or self.random.random() < _EXPLORING:
            return self.draw()
        chances = softmax(np.array([self._programs[p.number] for p in self.space.programs]))
        program = self.space.programs[int(self.random.choice(len(chances), p=chances))]
        decisions: list[Decision | None] = []
        for place, choice in enumerate(program.choices):
            ways = ways_of(choice)
            if ways is None:
                decisions.append(random_decision(choice, self.random))
                continue
            odds = softmax(_described(choice) @ self._weights(program.number, place, choice))
            decisions.append(ways[int(self.random.choice(len(ways), p=odds))])
        return Point(program.number, tuple(decisions))

    def _reinforce(self, point: Point, reward: float) -> None:
        """Follow the gradient of the log-probability of a point."""
        numbers = [program.number for program in self.space.programs]
        chances = softmax(np.array([self._programs[number] for number in numbers]))
        for number, chance in zip(numbers, chances, strict=True):
            self._programs[number] += _RATE * reward * (float(number == point.program) - chance)
        choices = self.space.programs[point.program].choices
        for place, (choice, taken) in enumerate(zip(choices, point.decisions, strict=True)):
            ways = ways_of(choice)
            if ways is None or taken not in ways:
                continue
            rows, weights = _described(choice), self._weights(point.program, place, choice)
            gradient = rows[ways.index(taken)] - softmax(rows @ weights) @ rows
            weights += _RATE * reward * gradient

    def _advantages(self, times_s: list[float]) -> np.ndarray:
        known = [s for s in self.times_s.values() if math.isfinite(s)]
        if not known:
            return np.zeros(len(times_s))
        mean = float(np.mean(np.log(known)))
        gains = [mean - math.log(s) if math.isfinite(s) else -_MOST for s in times_s]
        return np.clip(gains, -_MOST, _MOST)

    def _weights(self, program: int, place: int, choice: Choice) -> np.ndarray:
        width = _described(choice).shape[1]
        return self._policy.setdefault((program, place), np.zeros(width))


def ways_of(choice: Choice) -> tuple[Decision, ...] | None:
    """Every decision of a choice; None where the policy has none to make."""
    if choice.kind == TILE:
        return choice.ways or None
    return tuple(range(len(choice.values))) if choice.kind == CATEGORICAL else None


@lru_cache(maxsize=4096)
def _rows(ways: tuple[Decision, ...]) -> np.ndarray:
    """Features of the alternatives, (ways, terms), each scaled to a spread of 1."""
    if isinstance(ways[0], tuple):
        logs = np.log2(np.array(ways, dtype=float))
        terms = np.concatenate([logs, (logs - logs.mean(axis=0)) ** 2], axis=1)
    else:
        terms = np.eye(len(ways))
    spread = terms.std(axis=0)
    return (terms - terms.mean(axis=0)) / np.where(spread > 0, spread, 1.0)


def _described(choice: Choice) -> np.ndarray:
    ways = ways_of(choice)
    assert ways is not None
    return _rows(ways)

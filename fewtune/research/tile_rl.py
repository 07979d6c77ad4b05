"""Reinforcement learning without a cost model: a policy over tiles, rewarded by what was measured.

Method: REINFORCE (Williams 1992), as in the work on matmul tiling by reinforcement learning. The
policy draws each decision by a softmax over its alternatives. A tile's logit is linear in the
logarithm of each factor and its square, so that a reward also changes similar tiles. After a batch
each weight follows the gradient of the log-probability times the advantage: the logarithm of the
speed relative to the mean of all so far.
"""

from __future__ import annotations

import math
from functools import cached_property, lru_cache

import numpy as np
from scipy.special import softmax

from fewtune.schedule.space.design_space import Decision, Point
from fewtune.schedule.space.search_space import random_decision
from fewtune.search import Explorer, Proposal

_RATE = 0.4
# An advantage beyond this is of a failure.
_MOST = 2.0
# Part of the draws that the policy has no say in: it may have given up too early.
_EXPLORING = 0.1


class TileReinforcement(Explorer):
    """A policy gradient over the decisions of each program."""

    uses_model = False

    @cached_property
    def _weights(self) -> dict[tuple[int, int], np.ndarray]:
        """Of the terms of decisions, by program and choice; of those that were taken before."""
        return {}

    @cached_property
    def _logits(self) -> np.ndarray:
        """Of the programs."""
        return np.zeros(len(self.space.programs))

    def propose(self, count: int) -> list[Proposal]:
        return self.gather(self._drawn, count)

    def learn(self, proposals: list[Proposal], times_s: list[float]) -> None:
        super().learn(proposals, times_s)
        rewards = self._advantages(times_s)
        for proposal, reward in zip(proposals, rewards, strict=True):
            self._reinforce(proposal.point, float(reward) / max(1, len(proposals)))

    def _drawn(self) -> Point:
        if not self._weights or self.random.random() < _EXPLORING:
            return self.draw()
        chances = softmax(self._logits)
        program = self.space.programs[int(self.random.choice(len(chances), p=chances))]
        decisions: list[Decision | None] = []
        for place, choice in enumerate(program.choices):
            if not (ways := choice.ways):
                decisions.append(random_decision(choice, self.random))
                continue
            rows = _described(ways)
            odds = softmax(rows @ self._weights_of(program.number, place, rows))
            decisions.append(ways[int(self.random.choice(len(ways), p=odds))])
        return Point(program.number, tuple(decisions))

    def _reinforce(self, point: Point, reward: float) -> None:
        """Follow the gradient of the log-probability of a point."""
        is_taken = np.arange(len(self._logits)) == point.program
        self._logits += _RATE * reward * (is_taken - softmax(self._logits))
        choices = self.space.programs[point.program].choices
        for place, (choice, taken) in enumerate(zip(choices, point.decisions, strict=True)):
            if taken in (ways := choice.ways):
                rows = _described(ways)
                weights = self._weights_of(point.program, place, rows)
                gradient = rows[ways.index(taken)] - softmax(rows @ weights) @ rows
                weights += _RATE * reward * gradient

    def _advantages(self, times_s: list[float]) -> np.ndarray:
        known = [s for s in self.times_s.values() if math.isfinite(s)]
        if not known:
            return np.zeros(len(times_s))
        mean = float(np.mean(np.log(known)))
        gains = [mean - math.log(s) if math.isfinite(s) else -_MOST for s in times_s]
        return np.clip(gains, -_MOST, _MOST)

    def _weights_of(self, program: int, place: int, rows: np.ndarray) -> np.ndarray:
        return self._weights.setdefault((program, place), np.zeros(rows.shape[1]))


@lru_cache(maxsize=4096)
def _described(ways: tuple[Decision, ...]) -> np.ndarray:
    """Features of the alternatives, (ways, terms), each scaled to a spread of 1."""
    if isinstance(ways[0], tuple):
        logs = np.log2(np.array(ways, dtype=float))
        terms = np.concatenate([logs, (logs - logs.mean(axis=0)) ** 2], axis=1)
    else:
        terms = np.eye(len(ways))
    spread = terms.std(axis=0)
    return (terms - terms.mean(axis=0)) / np.where(spread > 0, spread, 1.0)

"""An agent that learns how to step through a search space: proximal policy optimisation.

Method: Schulman et al. 2017, with a clipped objective and a value network, as Chameleon (Ahn et al.
2020) uses it: an action changes one decision a little, the reward is the rise of the score.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from fewtune.research.network import Dense

_HIDDEN = 32
_POLICY_RATE, _VALUE_RATE = 0.01, 0.02
_DISCOUNT, _TRACE = 0.9, 0.95
_CLIP = 0.2
_EPOCHS = 6
# Weight of the entropy bonus, which keeps the policy exploring.
_ENTROPY = 0.01
_IMPOSSIBLE = -1e9


class World(Protocol):
    """The environment of an agent; it keeps the walkers' positions."""

    def observe(self) -> tuple[np.ndarray, np.ndarray]:
        """States, (walkers, width), and which actions are possible, (walkers, actions) bool."""

    def step(self, actions: np.ndarray) -> np.ndarray:
        """Take one action for each walker; return the new scores, (walkers,)."""


class _Step(NamedTuple):
    states: np.ndarray
    possible: np.ndarray
    actions: np.ndarray
    chances: np.ndarray
    rewards: np.ndarray


class Agent:
    """A policy and a value network, both small.

    Parameters
    ----------
    width, actions : int
        Width of a state, and number of actions.
    seed : int
    """

    def __init__(self, width: int, actions: int, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._policy = Dense([width, _HIDDEN, actions], self._random, _POLICY_RATE)
        self._value = Dense([width, _HIDDEN, 1], self._random, _VALUE_RATE)

    def chances(self, states: np.ndarray, possible: np.ndarray) -> np.ndarray:
        """The probability of each action, (walkers, actions)."""
        return _chances(self._policy.forward(states)[-1], possible)

    def episode(self, world: World, scores: np.ndarray, steps: int) -> np.ndarray:
        """Walk so many steps and learn from them; return the last scores, (walkers,).

        Parameters
        ----------
        world : World
        scores : ndarray, (walkers,)
            Of the walkers' positions.
        steps : int
        """
        taken: list[_Step] = []
        for _ in range(steps):
            states, possible = world.observe()
            chances = self.chances(states, possible)
            actions = np.array(
                [int(self._random.choice(len(row), p=row)) for row in chances], dtype=int
            )
            reached = world.step(actions)
            rows = np.arange(len(actions))
            taken.append(_Step(states, possible, actions, chances[rows, actions], reached - scores))
            scores = reached
        self._learn(taken, world.observe()[0])
        return scores

    def _learn(self, taken: list[_Step], last: np.ndarray) -> None:
        advantages, returns = self._advantages(taken, last)
        states, possible, actions, before = (
            np.concatenate([getattr(step, name) for step in taken])
            for name in ("states", "possible", "actions", "chances")
        )
        spread = advantages.std()
        advantages = (advantages - advantages.mean()) / (spread if spread > 0 else 1.0)
        rows = np.arange(len(actions))
        for _ in range(_EPOCHS):
            given = self._policy.forward(states)
            chances = _chances(given[-1], possible)
            ratio = chances[rows, actions] / before
            # Beyond the clip, a further step in the same direction has no gradient.
            is_free = np.where(advantages > 0, ratio < 1 + _CLIP, ratio > 1 - _CLIP)
            pull = advantages * ratio * is_free / len(rows)
            gradient = chances * pull[:, None]
            gradient[rows, actions] -= pull
            logs = np.log(np.maximum(chances, 1e-12))
            entropy = -(chances * logs).sum(axis=1, keepdims=True)
            gradient += _ENTROPY * chances * (logs + entropy) / len(rows)
            self._policy.train(given, gradient)
            valued = self._value.forward(states)
            self._value.train(valued, 2 * (valued[-1] - returns[:, None]) / len(rows))

    def _advantages(self, taken: list[_Step], last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Generalised advantage estimates, and the returns that the value network learns."""
        values = [self._value.forward(step.states)[-1][:, 0] for step in taken]
        values.append(self._value.forward(last)[-1][:, 0])
        found: list[np.ndarray] = []
        ahead = np.zeros(len(last))
        for place in reversed(range(len(taken))):
            surprise = taken[place].rewards + _DISCOUNT * values[place + 1] - values[place]
            ahead = surprise + _DISCOUNT * _TRACE * ahead
            found.append(ahead)
        advantages = np.concatenate(found[::-1])
        return advantages, advantages + np.concatenate(values[:-1])


def _chances(logits: np.ndarray, possible: np.ndarray) -> np.ndarray:
    logits = np.where(possible, logits, _IMPOSSIBLE)
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    return raised / raised.sum(axis=1, keepdims=True)

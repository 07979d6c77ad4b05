"""Chameleon: an agent steps through the decisions, then adaptive sampling picks candidates.

Method: Ahn et al. 2020, "Chameleon: Adaptive Code Optimization for Expedited Deep Neural Network
Compilation", sections 3 and 4. The agent is rewarded by predicted scores, so that its
steps cost no measurement. Adaptive sampling chooses among the points that it visited.
An action moves the least prime factor of a tile from one level to another, takes the next or the
previous value of a categorical choice, or stays. The agent is trained by proximal policy
optimization (Schulman et al. 2017), with a clipped objective. Its policy and its values are linear
in the decisions: a few hundred steps teach no more.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from scipy.special import softmax

from fewtune.research.adaptive import AdaptiveSampling, embedded
from fewtune.schedule.space.design_space import Point, Program
from fewtune.schedule.tiling import divisors
from fewtune.search.scorer import Proposal

_RATE = 1.0
_DISCOUNT, _TRACE = 0.9, 0.95
_CLIP = 0.2
_EPOCHS = 6
# Weight of the entropy bonus, which keeps the policy exploring.
_ENTROPY = 0.01
_IMPOSSIBLE = -1e9
_WALKERS, _STEPS = 16, 6
# Of a decision: the logarithm of a factor.
_SIZE = 4.0


class Agent:
    """A policy and values, both linear in the states.

    Parameters
    ----------
    width, actions : int
        Width of a state, and number of actions.
    seed : int
    """

    def __init__(self, width: int, actions: int, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._policy, self._values = np.zeros((width, actions)), np.zeros(width)

    def chances(self, states: np.ndarray, possible: np.ndarray) -> np.ndarray:
        """The probability of each action, (walkers, actions)."""
        found: np.ndarray = softmax(np.where(possible, states @ self._policy, _IMPOSSIBLE), axis=1)
        return found

    def walk(self, paths: _Paths) -> None:
        """Let walkers take some steps, and learn from them."""
        walked, scores = [], paths.scores
        for _ in range(_STEPS):
            states, possible = paths.observe()
            chances = self.chances(states, possible)
            actions = np.array(
                [int(self._random.choice(len(row), p=row)) for row in chances], dtype=int
            )
            reached = paths.step(actions)
            rows = np.arange(len(actions))
            walked.append((states, possible, actions, chances[rows, actions], reached - scores))
            scores = reached
        self._learn([np.stack(each) for each in zip(*walked, strict=True)], paths.observe()[0])

    def _learn(self, walked: list[np.ndarray], last: np.ndarray) -> None:
        """Learn from states, possible and taken actions, their chances and rewards, by step."""
        values = np.stack([*walked[0], last]) @ self._values
        # Generalised advantage estimates, and the returns that values are fitted to.
        advantages, ahead = np.empty_like(values[:-1]), np.zeros(len(last))
        for step in reversed(range(len(advantages))):
            surprise = walked[-1][step] + _DISCOUNT * values[step + 1] - values[step]
            advantages[step] = ahead = surprise + _DISCOUNT * _TRACE * ahead
        returns, advantages = (advantages + values[:-1]).ravel(), advantages.ravel()
        states, possible, actions, before = (np.concatenate(each) for each in walked[:-1])
        spread = advantages.std()
        advantages = (advantages - advantages.mean()) / (spread if spread > 0 else 1.0)
        rows = np.arange(len(actions))
        for _ in range(_EPOCHS):
            chances = self.chances(states, possible)
            ratio = chances[rows, actions] / before
            # Beyond the clip, a further step in the same direction has no gradient.
            is_free = np.where(advantages > 0, ratio < 1 + _CLIP, ratio > 1 - _CLIP)
            pull = advantages * ratio * is_free / len(rows)
            gradient = chances * pull[:, None]
            gradient[rows, actions] -= pull
            logs = np.log(np.maximum(chances, 1e-12))
            entropy = -(chances * logs).sum(axis=1, keepdims=True)
            gradient += _ENTROPY * chances * (logs + entropy) / len(rows)
            self._policy -= _RATE * states.T @ gradient
        self._values = np.linalg.lstsq(states, returns, rcond=None)[0]


# A change of the choice at a place: of a tile from and to a level, of a category by -1 or 1.
_Action = tuple[int, int, int]


class Chameleon(AdaptiveSampling):
    """An agent for each program, kept from batch to batch."""

    @cached_property
    def _agents(self) -> dict[int, Agent]:
        return {}

    def propose(self, count: int) -> list[Proposal]:
        if not self.judge.trained:
            return self.gather(self.draw, count)
        visited = self._walk()
        unknown = [p for p in visited if p.point not in self.times_s]
        taken = {proposal.point for proposal in unknown}
        unknown += self.gather(self.draw, max(1, count // 4), taken)
        chosen = self.select(*self.scored(unknown), count)
        # A walk may have visited no new point.
        return chosen or self.gather(self.draw, count)

    def _walk(self) -> list[Proposal]:
        """Let the agent of each promising program walk and learn."""
        starts = [*self.fastest(_WALKERS // 2)]
        starts += [p.point for p in self.gather(self.draw, _WALKERS - len(starts))]
        visited: dict[Point, Proposal] = {}
        for program in self.space.programs:
            points = [point for point in starts if point.program == program.number]
            paths = _Paths(self, program, points)
            if not paths.walkers or not paths.actions:
                continue
            if program.number not in self._agents:
                seed = int(self.random.integers(2**31))
                width = paths.observe()[0].shape[1]
                self._agents[program.number] = Agent(width, len(paths.actions) + 1, seed)
            self._agents[program.number].walk(paths)
            visited.update(paths.visited)
        return list(visited.values())


class _Paths:
    """Walkers in one program of a task: the agent's world."""

    def __init__(self, search: Chameleon, program: Program, points: list[Point]) -> None:
        self._search, self._program = search, program
        self.actions = _actions(program)
        made = search.space.make_all(points, [1] * len(points))
        walkers = [Proposal(m.schedule, m.point) for m in made if m.schedule is not None]
        self.walkers, self.scores = search.scored(walkers)
        self.visited = {walker.point: walker for walker in self.walkers}

    def observe(self) -> tuple[np.ndarray, np.ndarray]:
        """States: the decisions, about 1 in size, and 1; the last action is to stay."""
        states = embedded([walker.point for walker in self.walkers]) / _SIZE
        states[:, 0] = 1.0
        possible = [
            [*(_moved(self._program, w.point, a) is not None for a in self.actions), True]
            for w in self.walkers
        ]
        return states, np.array(possible)

    def step(self, actions: np.ndarray) -> np.ndarray:
        points: list[Point | None] = [
            _moved(self._program, w.point, self.actions[a]) if a < len(self.actions) else None
            for w, a in zip(self.walkers, actions.tolist(), strict=True)
        ]
        moving = [place for place, point in enumerate(points) if point is not None]
        made = self._search.space.make_all([p for p in points if p is not None], [1] * len(moving))
        for place, one in zip(moving, made, strict=True):
            # If a point cannot be made, the walker stays and gets no reward.
            if one.schedule is not None:
                self.walkers[place] = Proposal(one.schedule, one.point)
        self.walkers, scores = self._search.scored(self.walkers)
        self.visited.update((walker.point, walker) for walker in self.walkers)
        return scores


def _actions(program: Program) -> list[_Action]:
    found: list[_Action] = []
    for place, choice in enumerate(program.choices):
        if len(choice.ways) > 1:
            levels = range(len(choice.default) if isinstance(choice.default, tuple) else 2)
            found += [(place, a, b) for a in levels for b in levels if a != b]
    return found


def _moved(program: Program, point: Point, action: _Action) -> Point | None:
    """The point after an action; None if the action is impossible."""
    decisions, (place, source, sink) = list(point.decisions), action
    choice, now = program.choices[place], decisions[place]
    if isinstance(now, tuple):
        factors = divisors(now[source])[1:]
        if not factors:
            return None
        tile = list(now)
        tile[source] //= factors[0]
        tile[sink] *= factors[0]
        decisions[place], fits = tuple(tile), tile[-1] <= choice.innermost
    else:
        following = (now or 0) + sink - source
        decisions[place], fits = following, 0 <= following < len(choice.values)
    return Point(point.program, tuple(decisions)) if fits else None

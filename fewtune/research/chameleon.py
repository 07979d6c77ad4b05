"""Chameleon: an agent steps through the decisions, then adaptive sampling picks candidates.

Method: Ahn et al. 2020, "Chameleon: Adaptive Code Optimization for Expedited Deep Neural Network
Compilation", sections 3 and 4. The agent is rewarded by predicted scores, so that its
steps cost no measurement. Adaptive sampling chooses among the points that it visited.
An action moves the least prime factor of a tile from one level to another, takes the next or the
previous value of a categorical choice, or stays.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fewtune.options import TuneOptions
from fewtune.research.adaptive import AdaptiveSampling
from fewtune.research.agent import Agent
from fewtune.schedule.space.design_space import CATEGORICAL, TILE, Choice, Decision, Point, Program
from fewtune.schedule.space.search_space import SearchSpace
from fewtune.schedule.tiling import divisors
from fewtune.search.scorer import Proposal
from fewtune.search.strategy import Knowledge

_WALKERS, _STEPS = 16, 6


class _Action(NamedTuple):
    """A change of one choice: of a tile from and to a level, of a category by -1 or 1."""

    place: int
    source: int
    sink: int


class Chameleon(AdaptiveSampling):
    """An agent for each program, kept from batch to batch."""

    def __init__(
        self, space: SearchSpace, knowledge: Knowledge, options: TuneOptions, seed: int
    ) -> None:
        super().__init__(space, knowledge, options, seed)
        self._agents: dict[int, Agent] = {}

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
            if not points:
                continue
            paths = _Paths(self, program, points)
            if not paths.walkers or not paths.actions:
                continue
            if program.number not in self._agents:
                seed = int(self.random.integers(2**31))
                width = paths.observe()[0].shape[1]
                self._agents[program.number] = Agent(width, len(paths.actions) + 1, seed)
            self._agents[program.number].episode(paths, paths.scores, _STEPS)
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
        """States: logarithms of factors, categories; the last action is to stay."""
        states = np.array([_embedded(self._program, w.point) for w in self.walkers])
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
    found = []
    for place, choice in enumerate(program.choices):
        if choice.kind == TILE and isinstance(choice.default, tuple) and len(choice.ways) > 1:
            levels = range(len(choice.default))
            found += [_Action(place, a, b) for a in levels for b in levels if a != b]
        elif choice.kind == CATEGORICAL and len(choice.values) > 1:
            found += [_Action(place, 0, 1), _Action(place, 1, 0)]
    return found


def _moved(program: Program, point: Point, action: _Action) -> Point | None:
    """The point after an action; None if the action is impossible."""
    choice, now = program.choices[action.place], point.decisions[action.place]
    decision = _changed(choice, now, action)
    if decision is None:
        return None
    decisions = list(point.decisions)
    decisions[action.place] = decision
    return Point(point.program, tuple(decisions))


def _changed(choice: Choice, now: Decision | None, action: _Action) -> Decision | None:
    if isinstance(now, tuple):
        factors = divisors(now[action.source])[1:]
        if not factors:
            return None
        tile = list(now)
        tile[action.source] //= factors[0]
        tile[action.sink] *= factors[0]
        return tuple(tile) if tile[-1] <= choice.innermost else None
    if now is None:
        return None
    following = now + action.sink - action.source
    return following if 0 <= following < len(choice.values) else None


def _embedded(program: Program, point: Point) -> list[float]:
    """A point as numbers about 1 in size."""
    row: list[float] = []
    for choice, decision in zip(program.choices, point.decisions, strict=True):
        if choice.kind == TILE and isinstance(decision, tuple):
            whole = max(1.0, float(np.log2(choice.extent)))
            row += [float(np.log2(factor)) / whole for factor in decision]
        elif choice.kind == CATEGORICAL and isinstance(decision, int):
            row.append(decision / max(1, len(choice.values) - 1))
    return [*row, 1.0]

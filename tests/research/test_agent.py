"""The agent of Chameleon learns a toy space: a line on which only one end is worth anything."""

import numpy as np

from fewtune.research.chameleon import Agent

_END = 9


class Line:
    """Walkers on a line of ten places; the score is the place."""

    def __init__(self, walkers: int, seed: int) -> None:
        self.places = np.random.default_rng(seed).integers(0, _END + 1, size=walkers)

    def observe(self) -> tuple[np.ndarray, np.ndarray]:
        states = np.stack([self.places / _END, np.ones(len(self.places))], axis=1)
        possible = np.stack(
            [self.places > 0, np.full(len(self.places), True), self.places < _END], axis=1
        )
        return states, possible

    def step(self, actions: np.ndarray) -> np.ndarray:
        self.places = self.places + actions - 1
        return self.places / _END


def test_the_agent_learns_which_way_is_up():
    agent = Agent(2, 3, seed=0)
    for episode in range(60):
        world = Line(16, episode)
        agent.episode(world, world.places / _END, 6)
    world = Line(16, 1000)
    middle = np.array([[0.5, 1.0]])
    up = agent.chances(middle, np.full((1, 3), True))[0]
    assert up[2] > 0.8
    assert (agent.episode(world, world.places / _END, 12) > 0.9).mean() > 0.9

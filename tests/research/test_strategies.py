"""Grid, genetic, tile_rl and chameleon on the recorded task."""

import math

import numpy as np
import pytest

from fewtune.options import TuneOptions
from fewtune.research.grid import GridSearch
from fewtune.research.tile_rl import TileReinforcement
from fewtune.schedule.space.design_space import Point
from fewtune.search import Knowledge, make_strategy
from tests import recorded

pytestmark = pytest.mark.slow


def test_the_grid_meets_each_point_once():
    options = TuneOptions(strategy="grid")
    grid = make_strategy(recorded.space(), Knowledge(), options, 1)
    assert isinstance(grid, GridSearch)
    met = [grid.point_at(step) for step in range(grid.size)]
    assert set(met) == set(recorded.points())
    assert len(met) == len(set(met)) == len(recorded.points())


@pytest.mark.parametrize("name", ["genetic", "tile_rl"])
def test_what_was_fast_has_offspring(name):
    """A strategy without a model comes to propose more of what was fast."""
    options = TuneOptions(strategy=name, batch_size=16, informed_start=False)
    strategy = make_strategy(recorded.space(), Knowledge(), options, 1)

    def liked(point: Point) -> bool:
        return point.program == 0

    found = []
    for _ in range(8):
        batch = strategy.next_batch(16)
        found.append(np.mean([liked(proposal.point) for proposal in batch]))
        strategy.learn(batch, [1.0 if liked(p.point) else 3.0 for p in batch])
    assert np.mean(found[-3:]) > found[0]


def test_failures_teach_the_policy_and_break_nothing():
    options = TuneOptions(strategy="tile_rl", batch_size=8)
    strategy = make_strategy(recorded.space(), Knowledge(), options, 1)
    assert isinstance(strategy, TileReinforcement)
    for _ in range(3):
        batch = strategy.next_batch(8)
        assert batch
        strategy.learn(batch, [math.inf] * len(batch))

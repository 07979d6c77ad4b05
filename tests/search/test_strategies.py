"""Search strategies on a task whose every schedule was measured: without hardware, to the byte."""

import math
from functools import cache
from statistics import median

import numpy as np
import pytest

from fewtune.options import STRATEGIES as OWN
from fewtune.options import TuneOptions
from fewtune.schedule.space.design_space import Point
from fewtune.search import Explorer, Knowledge, make_strategy
from tests import recorded

pytestmark = pytest.mark.slow

STRATEGIES = [*OWN, "adaptive", "annealing", "chameleon", "genetic", "grid", "tile_rl"]
# A grid draws nothing, and TVM draws by itself.
SEEDED = [name for name in STRATEGIES if name not in ("grid", "metaschedule")]
TRIALS, BATCH = 48, 8


def search(name: str, seed: int, trials: int = TRIALS) -> tuple[Explorer, list[Point]]:
    """Run a strategy on the recorded figures; returns what it measured, in order."""
    options = TuneOptions(strategy=name, batch_size=BATCH, seed=seed)
    strategy = make_strategy(recorded.space(), Knowledge(), options, seed)
    measured: list[Point] = []
    while len(measured) < trials:
        proposals = strategy.next_batch(min(BATCH, trials - len(measured)))
        assert proposals
        measured += [proposal.point for proposal in proposals]
        strategy.learn(proposals, [recorded.times_s()[p.point] for p in proposals])
    return strategy, measured


@cache
def searched(name: str, seed: int) -> list[Point]:
    """What a strategy measured on the recorded figures; searched once for all tests."""
    return search(name, seed)[1]


def best_s(measured: list[Point]) -> float:
    return min(recorded.times_s()[point] for point in measured)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_proposes_nothing_twice_and_equal_seeds_search_alike(name):
    strategy, measured = search(name, 1, 24)
    assert len(measured) == len(set(measured)) == 24
    assert strategy.fastest(1)[0] == min(measured, key=lambda p: recorded.times_s()[p])
    if name in SEEDED:
        assert search(name, 1, 2 * BATCH)[1] == measured[: 2 * BATCH]
        assert search(name, 4, BATCH)[1] != measured[:BATCH]


@pytest.mark.parametrize("name", ["evolutionary", "annealing", "adaptive"])
def test_a_search_beats_drawing_at_random(name):
    seeds = range(1, 4)
    found = median(best_s(searched(name, seed)) for seed in seeds)
    drawn = median(best_s(searched("random", seed)) for seed in seeds)
    assert found <= drawn
    # Of 2,880 schedules, forty-eight were measured: the best found is among the best there are.
    ranked = sorted(recorded.times_s().values())
    assert found <= ranked[len(ranked) // 50]


def test_a_failed_candidate_is_not_proposed_again():
    options = TuneOptions(batch_size=4)
    strategy = make_strategy(recorded.space(), Knowledge(), options, 1)
    seen: set[Point] = set()
    for _ in range(5):
        proposals = strategy.next_batch(4)
        assert not seen & {proposal.point for proposal in proposals}
        seen |= {proposal.point for proposal in proposals}
        strategy.learn(proposals, [math.inf] * len(proposals))
    assert strategy.fastest(3) == []


def test_what_an_earlier_run_measured_is_known():
    strategy, measured = search("evolutionary", 1, 16)
    later = make_strategy(recorded.space(), Knowledge(), TuneOptions(batch_size=8), 2)
    later.remember(measured, [recorded.times_s()[point] for point in measured])
    assert later.fastest(3) == strategy.fastest(3)
    assert later.scorer.trained
    assert not {proposal.point for proposal in later.next_batch(8)} & set(measured)


def test_seeds_come_first_and_the_rest_of_the_batch_is_searched():
    given = search("evolutionary", 1, 16)[1][:3]
    strategy = make_strategy(recorded.space(), Knowledge(), TuneOptions(batch_size=8), 2)
    strategy.begin_from(given)
    batch = [proposal.point for proposal in strategy.next_batch(8)]
    assert batch[:3] == given
    assert len(set(batch)) == 8
    assert strategy.next_batch(8)


def test_seeds_that_an_interrupted_run_left_come_next():
    """A batch has room for some of them only; what it measured is not measured again."""
    space = recorded.space()
    random = np.random.default_rng(5)
    seeds = list(dict.fromkeys(space.random_point(random) for _ in range(6)))
    strategy = make_strategy(space, Knowledge(), TuneOptions(batch_size=2), 2)
    strategy.remember(seeds[:2], [1.0, 2.0])
    strategy.begin_from(seeds)
    proposed = [p.point for _ in range(3) for p in strategy.next_batch(2)]
    assert set(seeds[2:]) <= set(proposed)
    assert not set(seeds[:2]) & set(proposed)


def test_a_small_space_is_searched_to_its_end():
    options = TuneOptions(strategy="random", batch_size=64)
    strategy = make_strategy(recorded.space(), Knowledge(), options, 1)
    strategy.rejected.update(recorded.points()[:-10])
    proposals = strategy.next_batch(64)
    assert {proposal.point for proposal in proposals} <= set(recorded.points()[-10:])

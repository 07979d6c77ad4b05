"""Draws by expected speed."""

from collections import Counter

import numpy as np

from fewtune.schedule.space.decision_rates import (
    WeightedDraw,
    even_splits,
    outer_splits,
    shared_splits,
)


class Given:
    """A generator that always gives one number."""

    def __init__(self, value: float) -> None:
        self._value = value

    def random(self) -> float:
        return self._value


def test_the_faster_is_drawn_the_more_often_by_a_high_power():
    chances = WeightedDraw.of(["slow", "fast", "never"], [0.9, 1.0, 0.0])
    random = np.random.default_rng(0)
    counts = Counter(chances.draw(random) for _ in range(4000))
    assert counts["never"] == 0
    assert abs(counts["slow"] / counts["fast"] - 0.9**8) < 0.04
    again = np.random.default_rng(0)
    assert Counter(chances.draw(again) for _ in range(4000)) == counts


def test_bounds_belong_to_an_alternative():
    chances = WeightedDraw.of(range(3), [1.0, 1.0, 1.0])
    assert chances.bounds == (1.0, 2.0, 3.0)
    drawn = [chances.draw(Given(value)) for value in (0.0, 0.32, 0.34, 0.67, 1.0)]  # type: ignore[arg-type]
    assert drawn == [0, 0, 1, 2, 2]


def test_an_extent_is_cut_for_threads_and_cache():
    for cuts in (even_splits, outer_splits, shared_splits):
        found = cuts(12)
        assert sorted(found.alternatives) == [(1, 12), (2, 6), (3, 4), (4, 3), (6, 2), (12, 1)]

    def likelihood(chances: WeightedDraw, cut: tuple[int, int]) -> float:
        shares = np.diff([0.0, *chances.bounds])
        return float(shares[chances.alternatives.index(cut)])

    assert likelihood(even_splits(12), (12, 1)) == likelihood(even_splits(12), (1, 12))
    # Threads that share streamed weights all read them.
    assert likelihood(shared_splits(12), (12, 1)) < likelihood(shared_splits(12), (1, 12))
    assert likelihood(outer_splits(12), (1, 12)) > likelihood(outer_splits(12), (12, 1))

"""How far runs lie apart where nothing has changed, and what that does to a comparison."""

import numpy as np
import pytest

from pipelines.records.noise import Latency, between_runs, changed


def latency(median_ms: float, width: float = 0.01) -> Latency:
    return Latency(
        median_ms, (1 - width / 2) * median_ms, (1 + width / 2) * median_ms, 30.0, "1.31"
    )


def test_two_runs_say_nothing():
    assert between_runs([]) is None
    assert between_runs([5.0, 6.0]) is None
    assert between_runs([5.0, 5.0, 5.0]) == 0.0


def test_it_is_half_the_way_from_the_tenth_to_the_ninetieth_percentile():
    drawn = 10 * np.exp(np.random.default_rng(0).normal(0, 0.03, 4000))
    low, high = np.quantile(drawn, [0.1, 0.9])
    assert between_runs(drawn.tolist()) == pytest.approx((high - low) / 2 / 10, rel=0.1)


def test_one_step_among_the_runs_is_no_noise():
    assert between_runs([10.0, 10.1, 10.0, 5.0, 5.05, 5.0]) == pytest.approx(0.0134, abs=0.001)


def test_the_larger_of_both_noises_counts():
    before, now = latency(10.0), latency(10.8)
    assert changed(before, now).verdict == "slower"
    assert changed(before, now, between=0.1).verdict == "same"
    assert changed(before, now, between=0.001).noise == changed(before, now).noise


def test_a_board_is_compared_by_its_own_clock_alone():
    before = Latency(2.0, 1.99, 2.01, None, "1.31.1")
    now = Latency(1.0, 0.99, 1.01, None, "1.31.1")
    found = changed(before, now)
    assert (found.verdict, found.beside) == ("faster", None)

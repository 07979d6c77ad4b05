"""The points that one-shot tuning looks at: known tiles, best first, equal for equal seeds."""

from statistics import median

import numpy as np
import pytest

from fewtune.prediction.predict import most_promising
from fewtune.predictor.predictor import Predictor
from fewtune.schedule.space.design_space import Point
from fewtune.schedule.space.prior import Prior
from fewtune.search.scorer import Guide
from tests import recorded
from tests.made import predictors as made_predictors


def guide(prior: Prior) -> Guide:
    predictor = Predictor(made_predictors.learnt(made_predictors.some_points(1500)))
    found = Guide.of(recorded.space(), prior, predictor, is_cold=False)
    assert found is not None
    return found


def choose(count: int, seed: int) -> list[Point]:
    prior = Prior(recorded.space())
    random = np.random.default_rng(seed)
    return most_promising(recorded.space(), prior, guide(prior), count, random)


@pytest.mark.slow
def test_equal_seeds_choose_alike_and_the_best_rated_comes_first():
    prior = Prior(recorded.space())
    points = choose(200, 1)
    assert points == choose(200, 1)
    assert len(set(points)) == len(points)
    rated = guide(prior).expected(points)
    assert (np.diff(rated) <= 0).all()


def test_the_choice_is_among_the_fastest_of_what_rules_allow():
    times_s = recorded.times_s()
    points = choose(400, 1)
    ranked = sorted(times_s[point] for point in points)
    assert median(times_s[point] for point in points[:8]) <= ranked[len(ranked) // 5]


def test_no_tile_is_chosen_that_no_rule_draws():
    prior = Prior(recorded.space())
    random = np.random.default_rng(1)
    drawn = {prior.tile_of(prior.draw(random)) for _ in range(2000)}
    assert {prior.tile_of(point) for point in choose(200, 1)} <= drawn


def test_without_a_predictor_rules_alone_order_points():
    prior = Prior(recorded.space())
    points = most_promising(recorded.space(), prior, None, 50, np.random.default_rng(1))
    speeds = [prior.expected_speed(prior.tile_of(point)) for point in points]
    assert speeds == sorted(speeds, reverse=True)


def test_where_there_is_no_rule_nothing_is_chosen(monkeypatch):
    prior = Prior(recorded.space())
    monkeypatch.setattr(Prior, "informed", property(lambda _: False))
    assert most_promising(recorded.space(), prior, None, 50, np.random.default_rng(1)) == []

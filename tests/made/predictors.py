"""Predictors that know points of the recorded task."""

import numpy as np

from fewtune.predictor.features import DecisionFeatures
from fewtune.predictor.pretrained import Pretrained, TaskSamples
from fewtune.schedule.space.design_space import Point
from fewtune.schedule.space.prior import Prior
from tests import recorded

LANES = 8


def features(points: list[Point]) -> np.ndarray:
    """What a predictor goes by."""
    space = recorded.space()
    contraction = Prior(space).contraction
    assert contraction is not None
    return DecisionFeatures(space.programs, contraction, is_cold=False).of(points)


def learnt(points: list[Point]) -> Pretrained:
    """A predictor that knows these points."""
    times_s = np.array([recorded.times_s()[point] for point in points])
    return Pretrained.train(
        [TaskSamples(features(points), times_s)], {"lanes": LANES, "threads": 2}
    )


def some_points(count: int, seed: int = 0) -> list[Point]:
    """Some of all points of the recorded task."""
    points = recorded.points()
    chosen = np.random.default_rng(seed).choice(len(points), size=count, replace=False)
    return [points[int(place)] for place in chosen]

"""The graph network ranks the recorded task."""

import math

import numpy as np
import pytest
from pydantic import ValidationError
from scipy.stats import spearmanr

from fewtune.options import TuneOptions
from fewtune.research.gcn import GraphModel
from fewtune.search import Knowledge, make_strategy
from fewtune.search.scorer import Scorer
from fewtune.search.strategy import remade
from tests import recorded
from tests.made import predictors as made_predictors

pytestmark = pytest.mark.slow


def taught() -> tuple[np.ndarray, np.ndarray]:
    points = [p for p in made_predictors.some_points(96) if math.isfinite(recorded.times_s()[p])]
    times_s = [recorded.times_s()[point] for point in points]
    scorer = Scorer(recorded.space(), GraphModel())
    scorer.learn(*remade(recorded.space(), points[:56], times_s[:56]))
    proposals, held_s = remade(recorded.space(), points[56:], times_s[56:])
    return scorer.rate(proposals)[1], np.array(held_s)


def test_it_ranks_held_out_schedules_twice_alike():
    scores, held_s = taught()
    assert spearmanr(-scores, held_s)[0] > 0.2
    np.testing.assert_array_equal(scores, taught()[0])


def test_a_search_goes_by_it():
    options = TuneOptions(batch_size=8, cost_model="gcn")
    search = make_strategy(recorded.space(), Knowledge(GraphModel()), options, 1)
    for _ in range(2):
        batch = search.next_batch(8)
        search.learn(batch, [recorded.times_s()[proposal.point] for proposal in batch])
    assert search.judge.trained
    assert search.next_batch(8)
    with pytest.raises(ValidationError, match="xgboost alone"):
        TuneOptions(strategy="metaschedule", cost_model="gcn")

"""A search that the predictor guides."""

import numpy as np

from fewtune.options import TuneOptions
from fewtune.predictor.predictor import Predictor
from fewtune.schedule.space.design_space import Point
from fewtune.search import Knowledge, make_strategy
from fewtune.search.evolutionary import EvolutionarySearch
from tests import recorded
from tests.made.predictors import learnt, some_points


def test_a_guided_search_finds_sooner_what_a_search_finds():
    knowledge = Knowledge(predictor=Predictor(learnt(some_points(600))))
    options = TuneOptions(batch_size=8)

    def first_batch(known: Knowledge, seed: int) -> list[Point]:
        search = make_strategy(recorded.space(), known, options, seed)
        assert isinstance(search, EvolutionarySearch)
        return [proposal.point for proposal in search.next_batch(8)]

    times_s = recorded.times_s()
    guided = [min(times_s[p] for p in first_batch(knowledge, seed)) for seed in range(5)]
    alone = [min(times_s[p] for p in first_batch(Knowledge(), seed)) for seed in range(5)]
    assert np.median(guided) <= np.median(alone)
    assert first_batch(knowledge, 1) == first_batch(knowledge, 1)


def test_a_guided_search_proposes_nothing_twice_and_learns():
    knowledge = Knowledge(predictor=Predictor(learnt(some_points(300))))
    search = make_strategy(recorded.space(), knowledge, TuneOptions(batch_size=8), 1)
    seen: list[Point] = []
    for _ in range(5):
        proposals = search.next_batch(8)
        seen += [proposal.point for proposal in proposals]
        assert all(proposal.features is None for proposal in proposals)
        search.learn(proposals, [recorded.times_s()[p.point] for p in proposals])
    assert len(seen) == len(set(seen)) == 40
    assert [each.samples for each in knowledge.predictor._residuals.values()] == [40]
    # The cost model is not asked, and learns nothing.
    assert knowledge.cost_model.samples == 0


def test_without_the_predictor_the_cost_model_decides():
    knowledge = Knowledge(predictor=Predictor(learnt(some_points(100))))
    plain = make_strategy(recorded.space(), knowledge, TuneOptions(informed_start=False), 1)
    assert plain.guide is None
    native = make_strategy(recorded.space(), knowledge, TuneOptions(strategy="metaschedule"), 1)
    assert native.guide is None

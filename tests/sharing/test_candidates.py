"""What a task is offered: moved and drawn schedules; only those to be measured are made."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from tvm import te, topi

from fewtune.options import ShareOptions, TuneOptions
from fewtune.predictor.predictor import Predictor
from fewtune.runtime.target import target_from_json
from fewtune.schedule.space.design_space import Point
from fewtune.schedule.space.search_space import Made, SearchSpace
from fewtune.schedule.space.transfer import Donation, parallel_axis_of
from fewtune.search import Explorer, Knowledge, make_strategy
from fewtune.sharing.candidates import Offers, offers_for
from fewtune.task.extract import task_module
from tests import recorded
from tests.made.predictors import learnt, some_points
from tests.made.tasks import made_task


def guided() -> Explorer:
    knowledge = Knowledge(predictor=Predictor(learnt(some_points(600))))
    return make_strategy(recorded.space(), knowledge, TuneOptions(), 1)


def donation(point: Point) -> Donation:
    schedule = recorded.space().make(point).schedule
    assert schedule is not None
    return Donation.of(schedule.trace)


def offered(
    search: Explorer,
    donations: list[Donation],
    *,
    drawn: int = 8,
    for_finals: bool = False,
) -> Offers:
    options = ShareOptions(top="8", draws=drawn, trials_per_task=3)
    task = made_task("taker").info.model_copy(update={"shapes": [[4, 4]]})
    return offers_for(search, [("donor", donations)], options, task, for_finals=for_finals)


def points_of(offers: Offers) -> list[Point]:
    return [offer.proposal.point for offer in offers.likeliest]


def test_the_donors_best_comes_first_then_what_is_rated_best():
    search, points = guided(), some_points(6, seed=5)
    assert search.guide is not None
    # A donor's best that is rated far below others is another test's.
    points.sort(key=lambda point: -search.guide.expected([point])[0])
    points[0], points[1] = points[1], points[0]
    offers = offered(search, [*map(donation, points)], drawn=0)
    assert offers.offered == 6
    assert points_of(offers)[0] == points[0]
    assert [(offer.donor, offer.rank) for offer in offers.likeliest][0] == ("donor", 1)
    ranked = sorted(points[1:], key=lambda point: -search.guide.expected([point])[0])
    # Each register tile once, as long as there are others.
    best = {search.prior.tile_of(point): point for point in [*ranked[::-1], points[0]]}
    assert len(best) >= 3
    assert points_of(offers)[1:] == [point for point in ranked if point in best.values()][:2]
    assert all(offer.rank == 1 + points.index(offer.proposal.point) for offer in offers.likeliest)


def test_a_donors_best_that_is_rated_far_below_others_is_not_first():
    search = guided()
    assert search.guide is not None
    points = some_points(40, seed=5)
    rated = dict(zip(points, search.guide.expected(points), strict=True))
    ranked = sorted(points, key=lambda point: -rated[point])
    below = [point for point in ranked if rated[point] < rated[ranked[0]] - 0.2]
    near = [point for point in ranked[1:] if point not in below]
    for first in (below[0], near[-1]):
        given = [first, *ranked[:3]]
        offers = points_of(offered(search, [*map(donation, given)], drawn=0))
        assert (offers[0] == first) == (first in near)


def test_schedules_are_made_of_those_only_that_are_measured(monkeypatch):
    made: list[Point] = []
    whole = SearchSpace.make_all

    def counting(self: SearchSpace, points: Sequence[Point], seeds: Sequence[int]) -> list[Made]:
        made.extend(points)
        return whole(self, points, seeds)

    search, points = guided(), some_points(6, seed=5)
    donations = [*map(donation, points)]
    monkeypatch.setattr(SearchSpace, "make_all", counting)
    offers = offered(search, donations)
    assert len(offers.likeliest) == len(made) == 3
    # The cost model goes by programs: it has to be shown all.
    made.clear()
    plain = make_strategy(recorded.space(), Knowledge(), TuneOptions(), 1)
    assert len(offered(plain, donations).likeliest) == 3
    assert len(made) == 6


@pytest.mark.parametrize("is_served", [True, False])
def test_finals_get_one_that_parts_the_axis_that_neighbours_part(is_served):
    points = some_points(200, seed=5)
    rows = 0
    given = [p for p in points if (parallel_axis_of(p.decisions) == rows) == is_served][:8]
    donations = [*map(donation, given)]
    without = points_of(offered(guided(), donations, drawn=0))
    offers = points_of(offered(guided(), donations, drawn=0, for_finals=True))
    assert offers == without
    if not is_served:
        # One that parts rows is measured beside them, however low it is rated: the best such one.
        assert all(parallel_axis_of(point.decisions) != rows for point in without)
        search = guided()
        assert search.guide is not None
        of_rows = [p for p in points if parallel_axis_of(p.decisions) == rows]
        lowest = min(of_rows, key=lambda point: search.guide.expected([point])[0])
        beside = points_of(
            offered(search, [*donations, donation(lowest)], drawn=0, for_finals=True)
        )
        assert beside[-1] == lowest
        drawn = points_of(offered(guided(), donations, for_finals=True))
        assert any(parallel_axis_of(point.decisions) == rows for point in drawn)


def test_what_was_measured_is_not_offered_again():
    search, points = guided(), some_points(6, seed=5)
    search.times_s.update({point: recorded.times_s()[point] for point in points[:5]})
    offers = offered(search, [*map(donation, points)], drawn=0)
    assert points_of(offers) == points[5:]
    assert offers.offered == 6


def test_a_schedule_that_does_not_apply_gives_way_to_the_next_and_is_counted(monkeypatch):
    search, points = guided(), some_points(6, seed=5)
    donations = [*map(donation, points)]
    wanted = points_of(offered(search, donations, drawn=0))
    whole = SearchSpace.make

    def failing(self: SearchSpace, point: Point, seed: int = 1) -> Made:
        return Made(None, point, "rejected") if point == wanted[1] else whole(self, point, seed)

    monkeypatch.setattr(SearchSpace, "make", failing)
    offers = offered(search, donations, drawn=0)
    assert len(offers.likeliest) == 3
    assert points_of(offers)[:2] == [wanted[0], wanted[2]]
    assert offers.reasons == {"rejected": 1}


def test_decisions_without_a_counterpart_are_counted_and_draws_take_their_place():
    search, (point,) = guided(), some_points(1, seed=5)
    foreign = replace(donation(point), samples=donation(point).samples[:-1])
    offers = offered(search, [foreign])
    assert offers.reasons == {"no design space of the same form": 1}
    assert [offer.donor for offer in offers.likeliest] == [None] * len(offers.likeliest)
    assert len(offers.likeliest) >= 3
    again = offered(guided(), [foreign])
    assert points_of(again) == points_of(offers)
    times_s = [recorded.times_s()[each] for each in points_of(offers)]
    assert np.median(times_s) <= np.median([*recorded.times_s().values()])


@pytest.mark.parametrize(("share", "measured"), [(0.09, 9), (0.01, 3)])
def test_a_task_that_no_rule_fits_is_not_left_at_its_default(share, measured):
    """Extents without factors (a product onto 53 classes) and no donor: draws at random."""
    left, right = te.placeholder((7, 29), name="left"), te.placeholder((29, 53), name="right")
    product = te.create_prim_func([left, right, topi.matmul(left, right)])
    space = SearchSpace(task_module(product), target_from_json(recorded.TARGET))
    search = make_strategy(space, Knowledge(), TuneOptions(), 1)
    assert not search.prior.informed
    task = made_task("classes").info.model_copy(update={"shapes": [[7, 53]], "share": share})
    offers = offers_for(search, [], ShareOptions(trials_per_task=3), task)
    assert len(set(points_of(offers))) == measured
    assert all(offer.donor is None for offer in offers.likeliest)

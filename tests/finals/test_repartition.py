"""Schedules cut anew: another axis among the threads, the register tile as it was."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest

from fewtune.finals.repartition import reparted, to_be_reparted
from fewtune.schedule.space.design_space import Point
from fewtune.schedule.space.parallel_axis import parted_axis_of
from fewtune.sharing import candidates, session
from fewtune.sharing.candidates import reparted_offers
from fewtune.sharing.rounds import BEFORE_FINALS
from fewtune.trial.trial import Trial
from tests import tuned_tiny
from tests.finals.test_finals import OPTIONS, contested, model_directory  # noqa: F401 (a fixture)
from tests.made_tasks import trial
from tests.sharing.test_candidates import guided, some_points

# Of a product between Winograd's transforms: products, tiles, channels, and what is summed.
PRODUCTS_SIDE_BY_SIDE = Point(0, ((2, 8, 1, 1), (1, 7, 7, 1), (1, 1, 1, 32), (32, 4), 3))


def test_another_axis_is_parted_and_register_tiles_stay() -> None:
    assert reparted(PRODUCTS_SIDE_BY_SIDE, 1, threads=1) == [
        Point(0, ((1, 16, 1, 1), (7, 1, 7, 1), (1, 1, 1, 32), (32, 4), 3))
    ]


def test_what_the_threads_do_not_divide_is_also_cut_along_a_later_axis() -> None:
    point = Point(0, ((2, 8, 1, 1), (1, 7, 7, 1), (2, 2, 1, 16)))
    assert [found.decisions for found in reparted(point, 1, threads=4)] == [
        ((1, 16, 1, 1), (7, 1, 7, 1), (1, 4, 1, 16)),
        ((1, 16, 1, 1), (7, 1, 7, 1), (2, 2, 1, 16)),
        ((1, 16, 1, 1), (7, 1, 7, 1), (4, 1, 1, 16)),
    ]
    # Seven of seven, two threads: as it was is also what they lack.
    assert len(reparted(point, 1, threads=2)) == 2


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_every_cut_parts_the_axis_and_covers_all_iterations(axis: int) -> None:
    given = ((2, 6, 1, 1), (4, 3, 7, 1), (6, 2, 1, 8))
    found = reparted(Point(0, given), axis, threads=2)
    assert found
    for point in found:
        assert parted_axis_of(point.decisions) == axis
        for before, after in zip(given, point.decisions, strict=True):
            assert prod(after) == prod(before)
            assert after[2:] == before[2:]


def test_an_axis_that_is_whole_or_missing_cannot_be_parted() -> None:
    assert reparted(PRODUCTS_SIDE_BY_SIDE, 2, threads=2) == []
    assert reparted(PRODUCTS_SIDE_BY_SIDE, 3, threads=2) == []


def of(time_s: float, *outer: int) -> Trial:
    """A trial whose trace has tiles of these outermost levels."""
    tiles = [[place, [count, 1, 1, 1]] for place, count in enumerate(outer)]
    return Trial(json.dumps([[["made"]], tiles]), [time_s], None)


def test_tasks_are_asked_whose_fastest_parts_what_neighbours_do_not() -> None:
    ranked = {
        "across": [of(1.0, 1, 2)],
        "along": [of(1.0, 2, 1)],
        "light": [of(1.0, 1, 2)],
        "any": [of(1.0, 1, 2)],
        "default": [trial("default", 1.0)],
        "default across": [trial("default", 1.0), of(1.1, 1, 2), of(1.2, 2, 1)],
        "default along": [trial("default", 1.0), of(1.1, 2, 1), of(1.2, 1, 2)],
    }
    times_s = {**dict.fromkeys(ranked, 1.0), "light": 0.001}
    usual = {**dict.fromkeys(ranked, 0), "any": None}
    assert to_be_reparted(ranked, times_s, usual) == {"across": 0, "default across": 0}


def test_the_fastest_are_offered_cut_anew() -> None:
    search, points = guided(), some_points(4, seed=22)
    search.recall(points, [4.0, 1.0, 2.0, 3.0])
    assert parted_axis_of(points[1].decisions) == 0
    found = reparted_offers(search, 1).likeliest
    assert 1 <= len(found) <= 2
    for offer in found:
        assert parted_axis_of(offer.point.decisions) == 1
        assert offer.point not in points
        assert offer.donor is None


def test_what_is_the_same_program_cut_anew_is_not_offered() -> None:
    """Both outermost levels are one parallel loop: of one axis alone, either may have it all."""
    search, points = guided(), some_points(4, seed=5)
    search.recall(points, [4.0, 1.0, 2.0, 3.0])
    assert parted_axis_of(points[1].decisions) is None
    assert reparted_offers(search, 1).likeliest == []


@pytest.mark.usefixtures("contested")
def test_they_are_measured_before_finals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def every(ranked: Any, *_: Any) -> dict[str, int]:
        return dict.fromkeys(ranked, 1)

    def unrolled_anew(point: Point, *_: Any) -> list[Point]:
        # So small a model may have no axis to part; how far to unroll, its last choice, it has.
        return [Point(point.program, (*point.decisions[:-1], depth)) for depth in range(4)]

    monkeypatch.setattr(session, "to_be_reparted", every)
    monkeypatch.setattr(candidates, "reparted", unrolled_anew)
    model = model_directory(tmp_path / "model")
    report = tuned_tiny.share(tmp_path / "share", tmp_path / "journals", OPTIONS, model)
    (path,) = (tmp_path / "journals").glob("*.jsonl")
    events = [json.loads(each.partition(b" ")[2]) for each in path.read_bytes().splitlines()]
    rounds = [event for event in events if event.get("round") == BEFORE_FINALS]
    assert {event["task"] for event in rounds} == {
        tuned_tiny.convolutions()[letter].info.name for letter in "abc"
    }
    assert events.index(rounds[-1]) < [e["kind"] for e in events].index("in_model")
    tried = [Trial.from_json(entry) for event in rounds for entry in event["trials"]]
    assert 1 <= len(tried) <= 6
    line = next(each for each in report.rounds if each.name == BEFORE_FINALS)
    assert (line.tasks, line.trials) == (3, len(tried))
    # A run that goes on from the journal has them no second time.
    content = path.read_bytes()
    assert tuned_tiny.share(tmp_path / "again", tmp_path / "journals", OPTIONS, model) == report
    assert path.read_bytes() == content

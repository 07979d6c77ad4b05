"""The candidates of a task that shares: schedules moved from donors, or drawn by rule."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple, TypeVar

import numpy as np
import tvm_ffi

from fewtune.artifacts import TaskInfo
from fewtune.options import ShareOptions
from fewtune.schedule.space.design_space import Point
from fewtune.schedule.space.prior import TileKey
from fewtune.schedule.space.transfer import Donation, UnfitError, fit, parallel_axis_of, usual_axis
from fewtune.search import Explorer, Proposal

# A task without a donor that takes at least this part of the model's estimated time draws and
# measures this many times as many schedules: two drawn ones may both be slow.
_LARGE, _ALONE_TIMES = 0.02, 3
# The predictor chooses among so many drawn schedules.
_LOOKED_AT = 256
# The donor's best schedule is measured first unless the predictor rates it so much below the best
# candidate (logarithms of speeds). Of 88 tasks that measured it (six models, a Xeon), it was the
# fastest of 31, but of none of the 12 where it was rated lower than this: there it took 1.1 to 9.4
# times the fastest, since extents such as 7 do not hold the donor's tile.
_DOUBTED = 0.2
# From this part of the model's estimated time on, a task sends to finals in the model a schedule
# that splits the same axis among the threads as its neighbours.
_WORTH_ANOTHER = 0.002


class Offer(NamedTuple):
    """A schedule that a task could take; one drawn by rule has no donor."""

    proposal: Proposal
    donor: str | None
    rank: int | None

    @property
    def point(self) -> Point:
        """The schedule's decisions."""
        return self.proposal.point


class Offers(NamedTuple):
    """The candidates chosen for a task.

    Attributes
    ----------
    likeliest : list of Offer
        Schedules to be measured, the donor's best first.
    offered : int
        How many schedules the donors have.
    reasons : dict of int
        Why some of them could not be moved, with counts.
    """

    likeliest: list[Offer]
    offered: int
    reasons: dict[str, int]


class _Candidate(NamedTuple):
    """A point that may be offered, and its donor."""

    point: Point
    donor: str | None
    rank: int | None


_Given = TypeVar("_Given", _Candidate, Offer)


def offers_for(
    search: Explorer,
    given: Sequence[tuple[str, list[Donation]]],
    options: ShareOptions,
    task: TaskInfo,
    *,
    for_finals: bool = False,
) -> Offers:
    """Move the donors' schedules, draw others by rule, and choose those that are rated best.

    The predictor rates points by their decisions: then only the chosen ones are made.

    Parameters
    ----------
    search : Explorer
        The search of the task that takes.
    given : sequence of (str, list of Donation)
        Donors by name, most similar first, with their schedules, best first.
    options : ShareOptions
    task : TaskInfo
        The task that takes; its name is part of the seed.
    for_finals : bool
        Whether finals in the model follow: one candidate then splits the usual axis among the
        threads (`fewtune.finals.finalists`).
    """
    reasons: Counter[str] = Counter()
    candidates = _moved(search, given, reasons)
    wanted = usual_axis(task) if for_finals and task.share >= _WORTH_ANOTHER else None
    draws_more = not candidates and task.share >= _LARGE and not task.is_streamed
    times = _ALONE_TIMES if draws_more else 1
    if search.judge.trained or not candidates:
        drawn = _drawn(search, options.seed, task.name, times * options.draws, wanted=wanted)
        if not drawn and not candidates:
            drawn = _drawn_at_random(search, options.seed, task.name, times * options.draws)
        candidates += [_Candidate(point, None, None) for point in drawn]
    count = times * options.trials_per_task
    offers = _likeliest(search, candidates, reasons, count, wanted=wanted)
    offered = sum(len(donations) for _, donations in given)
    return Offers(offers, offered, dict(sorted(reasons.items())))


def _moved(
    search: Explorer, given: Sequence[tuple[str, list[Donation]]], reasons: Counter[str]
) -> list[_Candidate]:
    """The donors' schedules as points of the task's space; counts why others do not fit."""
    moved: dict[Point, _Candidate] = {}
    for donor, donations in given:
        for rank, donation in enumerate(donations, start=1):
            try:
                point = fit(donation, search.space)
            except UnfitError as unfit:
                reasons[str(unfit)] += 1
                continue
            if point not in search.times_s:
                moved.setdefault(point, _Candidate(point, donor, rank))
    return list(moved.values())


def _drawn(
    search: Explorer, seed: int, name: str, count: int, *, wanted: int | None
) -> list[Point]:
    """Points whose register tiles fit by rule; none if there is no rule for the task.

    If none of them splits the wanted axis, the best one that does is added.
    """
    if not count or not search.prior.informed:
        return []
    random = np.random.default_rng([seed, *name.encode()])
    looked_at = count if search.guide is None else max(count, _LOOKED_AT)
    points = list(dict.fromkeys(search.prior.draw(random) for _ in range(looked_at)))
    if search.guide is None:
        return points
    ordered = search.guide.ordered(points)
    chosen = [ordered[place] for place in _tiles_in_turn(search, ordered)][:count]
    if _is_served(chosen, wanted):
        return chosen
    return chosen + [p for p in ordered if parallel_axis_of(p.decisions) == wanted][:1]


def _drawn_at_random(search: Explorer, seed: int, name: str, count: int) -> list[Point]:
    """Random points, for a task without a rule and without a donor.

    Its extents have no factors that fill registers. The product onto the 6,625 classes of a text
    recogniser had no candidate: it kept its default schedule, 1.47 times as slow as full tuning's.
    """
    random = np.random.default_rng([seed, *name.encode()])
    looked_at = count if search.guide is None else max(count, _LOOKED_AT)
    points = list(dict.fromkeys(search.space.random_point(random) for _ in range(looked_at)))
    return points if search.guide is None else search.guide.ordered(points)[:count]


def _likeliest(
    search: Explorer,
    candidates: list[_Candidate],
    reasons: Counter[str],
    count: int,
    *,
    wanted: int | None,
) -> list[Offer]:
    """The nearest donor's best, and the candidates that are rated best.

    If none of them splits the wanted axis, one that does is added.
    """
    if search.guide is not None:
        speeds = search.guide.expected([candidate.point for candidate in candidates])
        ordered = _ordered(search, candidates, speeds, doubted=_DOUBTED)
        chosen = list(islice(_made(search, ordered, reasons, count), count))
        if _is_served([offer.point for offer in chosen], wanted):
            return chosen
        others = [each for each in ordered if parallel_axis_of(each.point.decisions) == wanted]
        # The reasons of those that cannot be made were counted above.
        return chosen + list(islice(_made(search, others, Counter(), 1), 1))
    # The cost model rates programs: all have to be made.
    offers = list(_made(search, candidates, reasons, len(candidates)))
    proposals, scores = search.scored([offer.proposal for offer in offers])
    offers = [o._replace(proposal=p) for o, p in zip(offers, proposals, strict=True)]
    return (_ordered(search, offers, scores) if search.judge.trained else offers)[:count]


def _is_served(points: Sequence[Point], wanted: int | None) -> bool:
    """Whether one of the points splits the wanted axis, or none is wanted."""
    return wanted is None or any(parallel_axis_of(point.decisions) == wanted for point in points)


def _ordered(
    search: Explorer, given: list[_Given], scores: np.ndarray, doubted: float = math.inf
) -> list[_Given]:
    """The first donor's best schedule, then the others by their scores.

    It gets no such place if its score is more than ``doubted`` below the best.
    """
    # The model may err; the best schedule of the most similar task is a good guess without it.
    is_first = bool(given) and given[0].donor is not None and scores[0] >= max(scores) - doubted
    first: list[int] = [0] if is_first else []
    others: list[int] = sorted(range(len(first), len(given)), key=lambda place: -scores[place])
    ordered = [given[place] for place in [*first, *others]]
    if not search.is_informed:
        return ordered
    return [ordered[place] for place in _tiles_in_turn(search, [one.point for one in ordered])]


def _tiles_in_turn(search: Explorer, points: Sequence[Point]) -> list[int]:
    """Places of points, reordered: each register tile comes once before one comes twice.

    The predictor errs most about tiles, above all on a machine that it does not know, so a second
    schedule of the same tile adds little. For ResNet 50's tasks, of 64 trials each, the fastest of
    the three that are rated best took 1.065 times the fastest of all. Of the best three of
    different tiles it took 1.043 times (geometric means; an EPYC, with a Xeon's predictor).
    """
    seen: Counter[TileKey] = Counter()
    turns = []
    for place, point in enumerate(points):
        tile = search.prior.tile_of(point)
        turns.append((seen[tile], place))
        seen[tile] += 1
    return [place for _, place in sorted(turns)]


def _made(
    search: Explorer, candidates: list[_Candidate], reasons: Counter[str], at_once: int
) -> Iterator[Offer]:
    """Make offers of candidates, in their order, ``at_once`` of them at a time.

    Candidates that cannot be made, or were measured, are left out. The reasons are counted for
    donors' schedules.
    """
    # Two schedules may be one program: it is measured once.
    seen: set[int] = set()
    for start in range(0, len(candidates), max(1, at_once)):
        some = candidates[start : start + at_once]
        seeds = range(start + 1, start + 1 + len(some))
        made_all = search.space.make_all([candidate.point for candidate in some], seeds)
        for candidate, made in zip(some, made_all, strict=True):
            if made.schedule is None:
                if candidate.donor is not None:
                    reasons[made.reason] += 1
                continue
            digest = tvm_ffi.structural_hash(made.schedule.mod)
            is_new = made.point not in search.times_s and not search.is_measured(digest)
            if is_new and digest not in seen:
                seen.add(digest)
                yield Offer(Proposal(made.schedule, made.point), candidate.donor, candidate.rank)

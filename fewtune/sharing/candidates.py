"""What a task can take: schedules moved from donors, or drawn by rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple, TypeVar

import numpy as np
import tvm_ffi

from fewtune.artifacts import TaskInfo
from fewtune.options import ShareOptions
from fewtune.schedule.space.design_space import Point
from fewtune.schedule.space.parallel_axis import parted_axis_of, usual_axis
from fewtune.schedule.space.prior import TileKey
from fewtune.schedule.space.transfer import Donation, UnfitError, fit
from fewtune.search import Explorer, Proposal

# A task that nobody gives anything, and that is at least this part of the model's estimated time,
# gets so many times the schedules drawn and measured: without a donor two are a lottery.
_LARGE, _ALONE_TIMES = 0.02, 3
# So many are drawn for the predictor to choose from.
_LOOKED_AT = 256
# From this part of the model's estimated time on, finals in the model are given a schedule that
# parts the axis among the threads that its neighbours part.
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
    """The likeliest of all that was on offer.

    Attributes
    ----------
    likeliest : list of Offer
        What is to be measured, the donor's best first.
    offered : int
        Schedules that the donors had to give.
    reasons : dict of int
        Why some of them could not be moved.
    """

    likeliest: list[Offer]
    offered: int
    reasons: dict[str, int]


class _Candidate(NamedTuple):
    """A point that may be offered, and who has it to give."""

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
    """Move what donors give, draw schedules beside it, and choose those that are rated best.

    Where the predictor rates them, by their decisions, schedules are made of the chosen ones only.

    Parameters
    ----------
    search : Explorer
        The search of the task that takes.
    given : sequence of (str, list of Donation)
        Donors by name, most similar first, with their schedules, best first.
    options : ShareOptions
    task : TaskInfo
        That takes; its name tells its draws from another's.
    for_finals : bool
        Whether finals in the model are to come, for which one of them is to part the usual axis
        among the threads (`fewtune.finals.finalists`).
    """
    reasons: Counter[str] = Counter()
    candidates = _moved(search, given, reasons)
    wanted = usual_axis(task) if for_finals and task.share >= _WORTH_ANOTHER else None
    is_lottery = not candidates and task.share >= _LARGE and not task.is_streamed
    times = _ALONE_TIMES if is_lottery else 1
    if search.judge.trained or not candidates:
        drawn = _drawn(search, options.seed, task.name, times * options.draws, wanted=wanted)
        if not drawn and not candidates and task.share >= _LARGE:
            drawn = _drawn_at_random(search, options.seed, task.name, times * options.draws)
        candidates += [_Candidate(point, None, None) for point in drawn]
    count = times * options.trials_per_task
    offers = _likeliest(search, candidates, reasons, count, wanted=wanted)
    offered = sum(len(donations) for _, donations in given)
    return Offers(offers, offered, dict(sorted(reasons.items())))


def _moved(
    search: Explorer, given: Sequence[tuple[str, list[Donation]]], reasons: Counter[str]
) -> list[_Candidate]:
    """What donors give, as points of the task's own space; why others cannot be, is counted."""
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
    """Points whose register tiles fit a task by rule, where there is one for it.

    One more where none of them parts the axis that is wanted: the best that does.
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
    return chosen + [p for p in ordered if parted_axis_of(p.decisions) == wanted][:1]


def _drawn_at_random(search: Explorer, seed: int, name: str, count: int) -> list[Point]:
    """Points of a task that no rule fits and nobody gives anything.

    Its extents have no factors that fill registers: 6,625 classes of a text recogniser kept the
    default schedule, at 1.47 times what full tuning found, and nobody had tried another.
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
    """The nearest donor's best, and beside it those that are rated best here.

    One more where none of these parts the axis that is wanted.
    """
    if search.guide is not None:
        paces = search.guide.expected([candidate.point for candidate in candidates])
        ordered = _ordered(search, candidates, paces)
        chosen = list(islice(_made(search, ordered, reasons, count), count))
        if _is_served([offer.point for offer in chosen], wanted):
            return chosen
        others = [each for each in ordered if parted_axis_of(each.point.decisions) == wanted]
        # Why some of them cannot be moved was counted above.
        return chosen + list(islice(_made(search, others, Counter(), 1), 1))
    # The cost model goes by programs: all have to be made.
    offers = list(_made(search, candidates, reasons, len(candidates)))
    proposals, scores = search.scored([offer.proposal for offer in offers])
    offers = [o._replace(proposal=p) for o, p in zip(offers, proposals, strict=True)]
    return (_ordered(search, offers, scores) if search.judge.trained else offers)[:count]


def _is_served(points: Sequence[Point], wanted: int | None) -> bool:
    """Whether one of some points parts the axis that is wanted, if any is."""
    return wanted is None or any(parted_axis_of(point.decisions) == wanted for point in points)


def _ordered(search: Explorer, given: list[_Given], scores: np.ndarray) -> list[_Given]:
    """The first donor's best before all, then the others by their scores."""
    # The model may err; what is best for the most similar task is a good guess without it.
    first: list[int] = [0] if given and given[0].donor is not None else []
    others: list[int] = sorted(range(len(first), len(given)), key=lambda place: -scores[place])
    ordered = [given[place] for place in [*first, *others]]
    if not search.is_informed:
        return ordered
    return [ordered[place] for place in _tiles_in_turn(search, [one.point for one in ordered])]


def _tiles_in_turn(search: Explorer, points: Sequence[Point]) -> list[int]:
    """Places of points in an order in which each register tile comes once before one comes twice.

    The predictor errs about tiles more than about the rest, most of all on a machine that it does
    not know: a second schedule of one tile tells little more than the first. Of the 64 trials that
    full tuning made of each of ResNet 50's tasks, the fastest of the three that are rated best took
    1.065 times what the fastest of all takes, of the best three of different tiles 1.043 (geometric
    means; an EPYC, with the predictor of a Xeon).
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
    """Offers of candidates, in their order, made so many at a time as they are asked for.

    What cannot be made is left out, and counted where a donor gave it; so is what was measured.
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

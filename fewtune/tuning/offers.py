"""What a task can take: its donors' schedules moved into its space, and some drawn by rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tvm_ffi

from fewtune.artifacts import TaskInfo
from fewtune.schedule.transfer import Donation, move
from fewtune.tuning.options import ShareOptions
from fewtune.tuning.strategies import Explorer, Proposal

# A task that nobody gives anything, and that is at least this part of the model's estimated time,
# gets so many times the schedules drawn and measured: without a donor two are a lottery.
_LARGE, _ALONE_TIMES = 0.02, 3
# So many are drawn for the predictor to choose from.
_LOOKED_AT = 256


class Offer(NamedTuple):
    """A schedule that a task could take; one drawn by rule has no donor."""

    proposal: Proposal
    donor: str | None
    rank: int | None


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


def offers_for(
    search: Explorer,
    given: Sequence[tuple[str, list[Donation]]],
    options: ShareOptions,
    task: TaskInfo,
    *,
    draws: bool,
) -> Offers:
    """Move what donors give, draw schedules beside it, and choose those that are rated best.

    Parameters
    ----------
    search : Explorer
        The search of the task that takes.
    given : sequence of (str, list of Donation)
        Donors by name, most similar first, with their schedules, best first.
    options : ShareOptions
    task : TaskInfo
        That takes; its name tells its draws from another's.
    draws : bool
        Whether schedules drawn by rule compete.
    """
    listed = [
        (donor, rank, donation)
        for donor, donations in given
        for rank, donation in enumerate(donations, start=1)
    ]
    reasons: Counter[str] = Counter()
    # Two schedules may be one program: it is measured once.
    offers: dict[int, Offer] = {}
    made = move([donation for *_, donation in listed], search.space)
    for (donor, rank, _), one in zip(listed, made, strict=True):
        if one.schedule is None:
            reasons[one.reason] += 1
        elif one.point not in search.times_s:
            digest = tvm_ffi.structural_hash(one.schedule.mod)
            offers.setdefault(digest, Offer(Proposal(one.schedule, one.point), donor, rank))
    is_lottery = not offers and task.share >= _LARGE and not task.is_streamed
    times = _ALONE_TIMES if is_lottery else 1
    if draws and (search.judge.trained or not offers):
        for proposal in _drawn(search, options.seed, task.name, times * options.draws):
            digest = tvm_ffi.structural_hash(proposal.schedule.mod)
            offers.setdefault(digest, Offer(proposal, None, None))
    likeliest = _likeliest(search, list(offers.values()), times * options.trials_per_task)
    return Offers(likeliest, len(listed), dict(sorted(reasons.items())))


def _drawn(search: Explorer, seed: int, name: str, count: int) -> list[Proposal]:
    """Schedules whose register tiles fit a task by rule, where there is a rule for it."""
    if not count or not search.prior.informed:
        return []
    random = np.random.default_rng([seed, *name.encode()])
    looked_at = count if search.guide is None else max(count, _LOOKED_AT)
    points = list(dict.fromkeys(search.prior.draw(random) for _ in range(looked_at)))
    if search.guide is not None:
        points = search.guide.ordered(points)[:count]
    made = search.space.make_all(points, range(1, len(points) + 1))
    return [Proposal(one.schedule, one.point) for one in made if one.schedule is not None]


def _likeliest(search: Explorer, offers: list[Offer], count: int) -> list[Offer]:
    """The nearest donor's best, and beside it those that are rated best here."""
    proposals, scores = search.scored([offer.proposal for offer in offers])
    offers = [o._replace(proposal=p) for o, p in zip(offers, proposals, strict=True)]
    if len(offers) <= count or not search.judge.trained:
        return offers[:count]
    # The model may err; what is best for the most similar task is a good guess without it.
    first = [0] if offers[0].donor is not None else []
    # One of the same register tile would tell little more.
    alike: set[int] = set()
    if first and search.is_informed:
        tiles = [search.prior.tile_of(offer.proposal.point) for offer in offers]
        alike = {place for place, tile in enumerate(tiles) if tile == tiles[0]}
    others = sorted(
        range(len(first), len(offers)), key=lambda place: (place in alike, -scores[place])
    )
    return [offers[place] for place in [*first, *others][:count]]

"""The points of a task that are expected to be fastest, found without making a schedule.

After the One-Shot Tuner (Ryu et al. 2022): a pretrained model rates thousands of points, and the
best one is taken unmeasured. The best of many estimates is one that errs upwards (the winner's
curse). So only points count whose register tile the rules of `fewtune.schedule.space.prior` know:
the predictor was trained on no others.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from fewtune.schedule.space.design_space import Point
from fewtune.schedule.space.prior import Prior
from fewtune.schedule.space.search_space import SearchSpace
from fewtune.search.scorer import Guide

# Points of all tasks together; least and most points of one task. Heavy tasks get more.
_POINTS, _FEWEST, _MOST = 20_000, 500, 2_000
# Half of the points are drawn by rule; the rest are children of the best, in so many generations.
_GENERATIONS = 3
_PARENTS = 24
_CROSSED, _RETILED = 0.3, 0.3


def points_of(share: float) -> int:
    """How many points of a task are rated.

    Parameters
    ----------
    share : float
        The task's part of the estimated time of all predicted tasks.
    """
    return int(min(_MOST, max(_FEWEST, share * _POINTS)))


def most_promising(
    space: SearchSpace,
    prior: Prior,
    guide: Guide | None,
    count: int,
    random: np.random.Generator,
) -> list[Point]:
    """Points of a task, those expected to be fastest first.

    Parameters
    ----------
    space : SearchSpace
    prior : Prior
    guide : Guide or None
        The predictor, bound to the task. Without one, the rules rate the points' register tiles.
        Without a rule either, there are no points.
    count : int
        How many points to rate.
    random : Generator
    """
    if not prior.informed:
        return []
    drawn = list(
        dict.fromkeys(prior.draw(random) for _ in range(count if not guide else count // 2))
    )
    if guide is None:
        return sorted(drawn, key=lambda point: -prior.expected_speed(prior.tile_of(point)))
    rated = dict(zip(drawn, guide.expected(drawn).tolist(), strict=True))
    known = {prior.tile_of(point) for point in drawn}
    each = max(1, (count - len(drawn)) // _GENERATIONS)
    for _ in range(_GENERATIONS):
        elders = sorted(rated, key=lambda point: -rated[point])[:_PARENTS]
        born = dict.fromkeys(_child(space, prior, elders, random) for _ in range(each))
        children = [p for p in born if p not in rated and prior.tile_of(p) in known]
        if children:
            rated.update(zip(children, guide.expected(children).tolist(), strict=True))
    return sorted(rated, key=lambda point: -rated[point])


def in_turn(prior: Prior, points: list[Point], first: Point) -> list[Point]:
    """Points reordered: each register tile comes once before one comes twice.

    The predictor errs most about tiles, above all on a machine that it does not know, so a second
    schedule of one tile adds little. For ResNet 50's tasks, of 64 trials each, the fastest of the
    three that are rated best took 1.065 times the fastest of all. Of the best three of different
    tiles it took 1.043 times (geometric means; an EPYC, with a Xeon's predictor). ``first`` has had
    its turn.
    """
    seen = Counter({prior.tile_of(first): 1})
    turns = []
    for place, point in enumerate(points):
        tile = prior.tile_of(point)
        turns.append((seen[tile], place))
        seen[tile] += 1
    return [points[place] for _, place in sorted(turns)]


def _child(
    space: SearchSpace, prior: Prior, elders: list[Point], random: np.random.Generator
) -> Point:
    # A parent of a better rank is chosen more often.
    first = elders[int(len(elders) * random.random() ** 2)]
    kind = random.random()
    if kind < _CROSSED:
        return space.crossed(first, elders[int(random.integers(len(elders)))], random)
    if kind < _CROSSED + _RETILED:
        return prior.retiled(first, random)
    return space.changed(first, random)

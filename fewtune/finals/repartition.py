"""A schedule cut anew: its register tiles, the iterations of another axis among the threads.

Alone, a kernel is often fastest parted along an axis that its neighbours do not part; in the model
both then fetch half of their data from the other core's cache (`fewtune.timing.interference`). What
it gains alone and loses there decides, and that is measured in finals, as long as a good schedule
of the other kind takes part. A short search does not find one: of the 12 schedules that were
measured of a product between DenseNet 121's Winograd transforms, one was parted along the tiles as
the transforms are, with half of a row of vectors a thread. Cut as its fastest, the products side by
side, it cost the transforms before it 5 of 14 us a call; of full tuning's 64, the ten fastest were
parted along the tiles (an EPYC).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd

from fewtune.schedule.space.design_space import SPATIAL_LEVELS, Point
from fewtune.schedule.space.parallel_axis import parted
from fewtune.schedule.tiling import divisors
from fewtune.trial.trial import Trial

# Of the model's time: what takes less gets no trial for its neighbours' sake.
_LEAST_PART = 0.005


def to_be_reparted(
    ranked: Mapping[str, list[Trial]],
    times_s: Mapping[str, float],
    usual: Mapping[str, int | None],
) -> dict[str, int]:
    """The tasks whose fastest parts another axis than neighbours do, with the axis these part.

    Of a default schedule it is not known what it parts: the fastest of the others stands for it.

    Parameters
    ----------
    ranked : mapping of list of Trial
        By task, the fastest alone first; none is empty.
    times_s : mapping of float
        What each task takes of the model's time.
    usual : mapping of int or None
        Each task's axis that kernels which are not searched part (`contenders.usual_axes`).
    """
    whole_s = sum(times_s.values())
    axes = {name: usual.get(name) for name in ranked}
    return {
        name: axis
        for name, axis in axes.items()
        if axis is not None
        and times_s[name] >= _LEAST_PART * whole_s
        and _first_parted(ranked[name]) not in (None, axis)
    }


def _first_parted(ranked: list[Trial]) -> int | None:
    """The axis that the fastest parts of those whose decisions tell."""
    axes = (parted(trial.key) for trial in ranked)
    return next((axis for axis in axes if axis is not None), None)


def reparted(point: Point, axis: int, threads: int) -> list[Point]:
    """All ways to part an axis among the threads first, each thread's register tile left as it is.

    Parameters
    ----------
    point : Point
    axis : int
        Its place among the spatial tiles.
    threads : int

    Returns
    -------
    points : list of Point
        With the outermost level of axes before it whole; of those after it whole, as it was, or,
        where the threads do not divide the axis, cut once for what they lack.
    """
    tiles = {
        place: decision
        for place, decision in enumerate(point.decisions)
        if isinstance(decision, tuple) and len(decision) == SPATIAL_LEVELS
    }
    places = list(tiles)
    if axis >= len(places):
        return []
    outer = {place: tile[0] * tile[1] for place, tile in tiles.items()}
    first, after = places[axis], places[axis + 1 :]
    found = []
    for factor in divisors(outer[first])[1:]:
        lacking = threads // gcd(factor, threads)
        even = next((place for place in after if lacking > 1 and outer[place] % lacking == 0), None)
        rests = [{}, {place: tiles[place][0] for place in after}]
        if even is not None:
            rests.append({even: lacking})
        for rest in rests:
            cuts = {first: factor, **rest}
            decisions = list(point.decisions)
            for place, tile in tiles.items():
                cut = cuts.get(place, 1)
                decisions[place] = (cut, outer[place] // cut, *tile[2:])
            found.append(Point(point.program, tuple(decisions)))
    return list(dict.fromkeys(found))

"""The limits of a GPU's blocks, checked before decisions are applied."""

from functools import cache
from itertools import cycle

import numpy as np

from fewtune.options import TuneOptions
from fewtune.runtime.tvm import register_intrinsics, tvm
from fewtune.schedule.space.design_space import Point
from fewtune.schedule.space.search_space import GpuLimits, Made, SearchSpace
from fewtune.search import Knowledge, make_strategy
from fewtune.search.cost_model import BoostedTrees
from tests import tuned_tiny

GPU = tvm.target.Target(
    {
        "kind": "cuda",
        "arch": "sm_90",
        "max_threads_per_block": 256,
        "thread_warp_size": 32,
        "max_shared_memory_per_block": 49152,
    }
)


def test_threads_of_a_block_are_counted_over_all_axes():
    limits, reduction = GpuLimits.of(GPU), (4, 8, 2)
    assert limits.allow([(2, 1, 16, 1, 2), (1, 2, 8, 1, 1), reduction, 3])
    # 512 threads; 16, less than a warp; 16 virtual ones.
    assert not limits.allow([(2, 1, 32, 1, 2), (1, 2, 16, 1, 1), reduction])
    assert not limits.allow([(2, 1, 4, 1, 2), (1, 2, 4, 1, 1), reduction])
    assert not limits.allow([(2, 4, 16, 1, 2), (1, 4, 8, 1, 1), reduction])


@cache
def space() -> SearchSpace:
    register_intrinsics(GPU)
    return SearchSpace(tuned_tiny.convolutions()["b"].mod, GPU)


def refused() -> Point:
    """A point with more threads than a block may have."""
    random = np.random.default_rng(1)
    drawn = (space().any_point(random) for _ in range(10_000))
    return next(point for point in drawn if not space().can_hold(point))


def test_a_search_applies_only_points_within_the_limits(monkeypatch):
    applied: list[Point] = []

    def make_all(self: SearchSpace, points: list[Point], seeds: list[int]) -> list[Made]:
        applied.extend(points)
        return [self.make(point, seed) for point, seed in zip(points, seeds, strict=True)]

    monkeypatch.setattr(SearchSpace, "make_all", make_all)
    knowledge = Knowledge(cost_model=BoostedTrees(), predictor=None, is_cold=False)
    search = make_strategy(space(), knowledge, TuneOptions(strategy="genetic"), seed=1)
    random = np.random.default_rng(2)
    children = cycle([refused, lambda: space().random_point(random)])
    found = search.gather(lambda: next(children)(), 2)
    assert len(found) == 2
    assert all(map(space().can_hold, applied))
    # A task may have no such points: any drawn point is tried then.
    applied.clear()
    search.gather(refused, 1)
    assert applied == [refused()]

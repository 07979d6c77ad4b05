"""The limits of a GPU's thread blocks, checked before a point is applied.

TVM's check of GPU code refuses nine in ten random points of a 3x3 convolution, after applying them.
Most have too many threads in a block, too few to fill a warp, or too many virtual threads. Products
of the tiles' factors show this before. Four in ten points within the limits pass TVM's check.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from fewtune.schedule.space.design_space import Decision

# MetaSchedule tiles a spatial axis of a GPU by block, virtual thread, thread, and two loops.
_LEVELS, _VIRTUAL, _THREAD = 5, 1, 2
_MOST_VIRTUAL = 8
# After so many draws, any point is taken: some tasks have none within the limits.
MOST_DRAWS = 64


class GpuLimits(NamedTuple):
    """The least and the most threads of a block."""

    least_threads: int
    most_threads: int

    @staticmethod
    def of(target: Any) -> GpuLimits:
        """The limits of a GPU target."""
        attributes = target.attrs
        warp = int(attributes.get("thread_warp_size", 32) or 32)
        most = int(attributes.get("max_threads_per_block", 0) or 0)
        return GpuLimits(warp, most or int(attributes.get("max_num_threads", 1024) or 1024))

    def allow(self, decisions: Sequence[Decision | None]) -> bool:
        """Whether the tiles among some decisions make a block within the limits."""
        tiles = [d for d in decisions if isinstance(d, tuple) and len(d) == _LEVELS]
        if not tiles:
            return True
        threads = prod(tile[_THREAD] for tile in tiles)
        virtual = prod(tile[_VIRTUAL] for tile in tiles)
        return self.least_threads <= threads <= self.most_threads and virtual <= _MOST_VIRTUAL

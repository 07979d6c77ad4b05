"""Default schedules of reductions along the axis that is contiguous in memory."""

from __future__ import annotations

from math import gcd, prod
from typing import Any

from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.tvm import tvm
from fewtune.schedule.blocks import Block
from fewtune.schedule.defaults.epilogue import attach_tail
from fewtune.schedule.tiling import divisors, parallel_outer, split_off, vectorize_inner


def across_lanes(
    sch: tvm.s_tir.Schedule, block: Block, along: int, traits: CpuTraits, parallel: bool
) -> bool:
    """Reduce along the contiguous reduction axis into the lanes of a vector, then sum up the lanes.

    Parameters
    ----------
    sch : Schedule
    block : Block
    along : int
        The contiguous reduction axis.
    traits : CpuTraits
    parallel : bool
        Whether the block has enough work for threads.

    Returns
    -------
    changed : bool
    """
    lanes = traits.lanes(block.data_type)
    loops = list(sch.get_loops(block.handle))
    spatial = [
        (loop, extent)
        for loop, kind, extent in zip(loops, block.kinds, block.extents, strict=True)
        if kind == "S"
    ]
    reductions = [i for i, kind in enumerate(block.kinds) if kind == "R"]
    fused, extent = [along], block.extents[along]
    if reductions == list(range(reductions[0], along + 1)) and _dense(block, reductions):
        fused, extent = reductions, prod(block.extents[i] for i in reductions)
    loop = sch.fuse(*[loops[i] for i in fused]) if len(fused) > 1 else loops[along]
    shorter = [d for d in divisors(extent) if d <= min(4 * lanes, extent - 1)]
    width = max(shorter, key=lambda d: (gcd(d, lanes), d), default=1)
    sch.reorder(*[s for s, _ in spatial], *[loops[i] for i in reductions if i not in fused], loop)
    place = parallel_outer(sch, spatial, traits) if parallel and spatial else None
    if place is None and spatial:
        place = spatial[-1][0]
    if width > 1:
        _, lane = split_off(sch, loop, extent, width)
        partial = sch.rfactor(lane, 0)
        handle = block.handle
        if place is not None:
            sch.compute_at(partial, sch.get_loops(handle)[0], preserve_unit_loops=True)
        own = list(sch.get_loops(partial))
        _place_lanes(sch, partial, own, width, lanes)
    if place is not None:
        attach_tail(sch, block, sch.get_loops(block.handle)[0], traits=None)
    return True


def _place_lanes(
    sch: tvm.s_tir.Schedule, partial: Any, own: list[Any], width: int, lanes: int
) -> None:
    """Vectorise the lanes of partial results, inside the loop over their steps."""
    kinds = [
        "R" if axis.iter_type == tvm.tirx.IterVar.CommReduce else "S"
        for axis in sch.get(partial).iter_vars
    ]
    lane = next(loop for loop in own[1:] or own if int(sch.get(loop).extent) == width)
    after = own[own.index(lane) + 1 :]
    if after and "R" in kinds:
        sch.reorder(*after, lane)
    first = after[0] if after else None
    vectorize_inner(sch, lane, width, lanes)
    if first is not None:
        sch.decompose_reduction(partial, first)


def _dense(block: Block, axes: list[int]) -> bool:
    """Whether the axes are contiguous with each other in every read."""
    for walk in block.reads:
        if walk is None:
            return False
        for above, below in zip(axes, axes[1:], strict=False):
            if block.extents[above] == 1 or block.extents[below] == 1:
                continue
            if walk[above].stride != walk[below].stride * block.extents[below]:
                return False
    return True

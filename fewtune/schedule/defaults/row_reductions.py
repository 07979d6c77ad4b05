"""Default schedules of kernels with several reductions over the same rows, such as softmax."""

from __future__ import annotations

from math import prod
from typing import Any

from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.tvm import tvm
from fewtune.schedule.blocks import Block, ScheduleError, blocks_of, describe, estimated_us
from fewtune.schedule.tiling import LEAST_PARALLEL_US, parallel_outer, vector_width


def schedule_rows(sch: tvm.s_tir.Schedule, traits: CpuTraits) -> bool:
    """Compute all blocks inside one parallel loop over the rows that they share.

    Returns
    -------
    changed : bool
        False if the blocks do not share rows; the schedule is then unchanged.
    """
    handles = blocks_of(sch)
    described = [describe(sch, handle) for handle in handles]
    blocks = [block for block in described if block is not None]
    if len(blocks) < len(handles) or sch.get_consumers(handles[-1]):
        return False
    last = blocks[-1]
    shared = _shared_axes(blocks)
    if shared == 0:
        return False
    work_us = sum((estimated_us(sch, block.handle, block) for block in blocks), 0.0)
    rows = [(loop, last.extents[i]) for i, loop in enumerate(sch.get_loops(last.handle)[:shared])]
    if work_us < LEAST_PARALLEL_US:
        outer = sch.fuse(*[loop for loop, _ in rows]) if shared > 1 else rows[0][0]
    elif prod(extent for _, extent in rows) >= traits.threads:
        outer = parallel_outer(sch, rows, traits)
    else:
        return False
    partial = [_in_lanes(sch, block, traits) if block.is_reduction else [] for block in blocks]
    steps = [
        each
        for block, before in zip(blocks, partial, strict=True)
        for each in (*before, block.handle)
    ]
    for handle in reversed(steps[:-1]):
        sch.compute_at(handle, outer, preserve_unit_loops=True)
    for block, before in zip(blocks, partial, strict=True):
        for each in before:
            _vectorize_lanes(sch, each, outer)
        if not block.is_reduction:
            _vectorize(sch, block, outer, traits)
    return True


def _shared_axes(blocks: list[Block]) -> int:
    """The number of leading axes that are spatial and have the same extent in all blocks."""
    count = 0
    while all(len(block.extents) > count and block.kinds[count] == "S" for block in blocks):
        if len({block.extents[count] for block in blocks}) > 1:
            break
        count += 1
    # The last axis of the result stays inside the loop, to be vectorised.
    return min(count, len(blocks[-1].extents) - 1)


def _in_lanes(sch: tvm.s_tir.Schedule, block: Block, traits: CpuTraits) -> list[Any]:
    """Reduce along the last axis into the lanes of a vector, and these into a quarter of the lanes.

    This is possible only before the block is computed at the loop over rows.

    Returns
    -------
    partial : list
        The new blocks of partial results, in order; none if the block is unchanged.
    """
    if len(block.writes) > 1:
        return []
    lanes = traits.lanes(block.data_type)
    partial = []
    for most in (lanes, lanes // 4):
        loop = sch.get_loops(block.handle)[-1]
        extent = int(sch.get(loop).extent)
        width = vector_width(extent, most, 1)
        if not (max(2, most // 2) <= width < extent):
            break
        _, lane = sch.split(loop, [extent // width, width])
        try:
            partial.append(sch.rfactor(lane, 0))
        except ScheduleError:
            break
    return partial


def _inside(sch: tvm.s_tir.Schedule, handle: Any, outer: Any) -> list[Any]:
    """The loops of a block inside the loop over rows."""
    loops = list(sch.get_loops(handle))
    return loops[[sch.get(loop).same_as(sch.get(outer)) for loop in loops].index(True) + 1 :]


def _vectorize_lanes(sch: tvm.s_tir.Schedule, partial: Any, outer: Any) -> None:
    """Vectorise partial results, so that they stay in a register during their reduction."""
    lane, *_, step = _inside(sch, partial, outer)
    sch.reorder(step, lane)
    sch.vectorize(lane)
    sch.decompose_reduction(partial, step)


def _vectorize(sch: tvm.s_tir.Schedule, block: Block, outer: Any, traits: CpuTraits) -> None:
    inner = _inside(sch, block.handle, outer)
    if not inner:
        return
    extent = int(sch.get(inner[-1]).extent)
    width = vector_width(extent, traits.lanes(block.data_type), 1)
    if width < 2:
        return
    loop = inner[-1]
    if width < extent:
        _, loop = sch.split(loop, [extent // width, width])
    try:
        sch.vectorize(loop)
    except ScheduleError:
        return

"""Default schedule of kernels with several reductions over the same rows, as softmax has."""

from __future__ import annotations

from math import prod
from typing import Any

from fewtune.schedule.blocks import (
    CpuTraits,
    ScheduleError,
    blocks_of,
    describe,
    estimated_us,
)
from fewtune.schedule.tiling import LEAST_PARALLEL_US, parallel_outer, vector_width
from fewtune.tvm_runtime import tvm


def schedule_rows(sch: tvm.s_tir.Schedule, traits: CpuTraits) -> bool:
    """Compute every block inside one parallel loop over the rows that they share.

    Returns
    -------
    changed : bool
        False, and the schedule as it was, where the blocks do not share rows.
    """
    handles = blocks_of(sch)
    blocks = [describe(sch, handle) for handle in handles]
    if any(block is None for block in blocks) or sch.get_consumers(handles[-1]):
        return False
    last = blocks[-1]
    shared = _shared_axes(blocks)
    if shared == 0:
        return False
    work_us = sum(estimated_us(sch, block.handle, block) for block in blocks)
    rows = [(loop, last.extents[i]) for i, loop in enumerate(sch.get_loops(last.handle)[:shared])]
    if work_us < LEAST_PARALLEL_US:
        outer = sch.fuse(*[loop for loop, _ in rows]) if shared > 1 else rows[0][0]
    elif prod(extent for _, extent in rows) >= traits.threads:
        outer = parallel_outer(sch, rows, traits)
    else:
        return False
    for handle in reversed(handles[:-1]):
        sch.compute_at(handle, outer, preserve_unit_loops=True)
    for handle in handles:
        _vectorize(sch, handle, outer, traits)
    return True


def _shared_axes(blocks: list[Any]) -> int:
    """How many leading axes are spatial and of one extent in all blocks."""
    count = 0
    while all(len(block.extents) > count and block.kinds[count] == "S" for block in blocks):
        if len({block.extents[count] for block in blocks}) > 1:
            break
        count += 1
    # The last axis of what is written stays inside, for the vectors.
    return min(count, len(blocks[-1].extents) - 1)


def _vectorize(sch: tvm.s_tir.Schedule, handle: Any, outer: Any, traits: CpuTraits) -> None:
    statement = sch.get(handle)
    data_type = str(statement.writes[0].source.dtype)
    lanes = traits.lanes(data_type)
    reduces = any(axis.iter_type == tvm.tirx.IterVar.CommReduce for axis in statement.iter_vars)
    loops = list(sch.get_loops(handle))
    inner = loops[[sch.get(loop).same_as(sch.get(outer)) for loop in loops].index(True) + 1 :]
    if not inner:
        return
    extent = int(sch.get(inner[-1]).extent)
    width = vector_width(extent, lanes, 1)
    if width < 2:
        return
    try:
        if not reduces:
            loop = inner[-1]
            if width < extent:
                _, loop = sch.split(loop, [extent // width, width])
            sch.vectorize(loop)
        elif len(statement.writes) == 1 and lanes // 2 <= width < extent:
            _, lane = sch.split(inner[-1], [extent // width, width])
            partial = sch.rfactor(lane, 0)
            sch.compute_at(partial, outer, preserve_unit_loops=True)
            own = list(sch.get_loops(partial))[-2:]
            if int(sch.get(own[0]).extent) == width:
                sch.reorder(own[1], own[0])
                own.reverse()
            sch.vectorize(own[1])
            sch.decompose_reduction(partial, own[0])
    except ScheduleError:
        return

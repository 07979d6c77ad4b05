"""Default schedules of blocks without reduction: copies, elementwise, transposes, padding."""

from __future__ import annotations

from math import gcd
from typing import Any

from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.tvm import tvm
from fewtune.schedule.blocks import Block, condition_axes, estimated_us
from fewtune.schedule.tiling import (
    LEAST_PARALLEL_US,
    contiguous_axis,
    parallel_outer,
    split_off,
    vector_width,
    vectorize_inner,
)

# Elements of a cache line in fp32: tiles of this size use every byte of the lines that they load.
_TRANSPOSE_TILE = 16


def schedule_injective(sch: tvm.s_tir.Schedule, block: Block, traits: CpuTraits) -> bool:
    """Vectorise the contiguous axis and run the others in parallel.

    Returns
    -------
    changed : bool

    Raises
    ------
    ScheduleError
        If TVM refuses a step; the schedule is then incomplete.
    """
    parallel = estimated_us(sch, block.handle, block) >= LEAST_PARALLEL_US
    axis = contiguous_axis(block)
    loops = list(sch.get_loops(block.handle))
    if axis is None or axis != _last_axis(block):
        return parallel and _parallel_only(sch, block, loops, traits)
    across = _read_axis(block, axis)
    if across is not None:
        return _transpose(sch, block, loops, (across, axis), traits, parallel)
    chosen = condition_axes(sch, block.handle)
    first = max(_first_fusible(block, axis), *(min(i + 1, axis) for i in (-1, *chosen)))
    extent, run = 1, 0
    for position in range(first, axis + 1):
        extent *= block.extents[position]
    walks = [walk for walk in (*block.reads, *block.writes) if walk is not None]
    run = extent if first < axis else gcd(extent, *(w[axis].run for w in walks))
    inner = sch.fuse(*loops[first : axis + 1]) if first < axis else loops[axis]
    outer = [(loop, block.extents[i]) for i, loop in enumerate(loops[:first])]
    lanes = traits.lanes(block.data_type)
    # If a condition differs between the lanes of a vector, TVM makes a scalar loop of it. LLVM
    # evaluates the condition once for a loop of one register's length: concatenation of four
    # tensors reaches 55 GB/s so, and 28 with the whole loop.
    width = vector_width(run, lanes, 1 if axis in chosen else 4)
    if width == 1 and run < extent and axis not in chosen:
        # Short runs, as in a channel shuffle: gathers in full vectors are faster than scalar code.
        width = vector_width(extent, lanes, 1)
    if width == 1:
        if parallel:
            parallel_outer(sch, [*outer, (inner, extent)], traits, keep=1)
        return parallel
    if width < extent:
        rest, inner = split_off(sch, inner, extent, width)
        outer.append((rest, extent // width))
    vectorize_inner(sch, inner, width, lanes)
    if parallel and outer:
        parallel_outer(sch, outer, traits, keep=1 if width < extent else 0)
    return width > 1 or (parallel and bool(outer))


def _last_axis(block: Block) -> int:
    longer = [axis for axis, extent in enumerate(block.extents) if extent > 1]
    return longer[-1] if longer else 0


def _parallel_only(
    sch: tvm.s_tir.Schedule, block: Block, loops: list[Any], traits: CpuTraits
) -> bool:
    outer = [(loop, block.extents[i]) for i, loop in enumerate(loops)]
    parallel_outer(sch, outer, traits, keep=max(0, len(outer) - 1))
    return True


def _first_fusible(block: Block, axis: int) -> int:
    """The first axis such that it and those up to ``axis`` are contiguous in every tensor."""
    first = axis
    accesses = [*block.reads, *block.writes]
    walks = [walk for walk in accesses if walk is not None]
    if len(walks) < len(accesses):
        return first
    while first > 0:
        above, below = first - 1, first
        for walk in walks:
            long = walk[above].run == block.extents[above], walk[below].run == block.extents[below]
            if block.extents[above] == 1 or (block.extents[below] == 1 and above < axis - 1):
                continue
            if not all(long) or walk[above].stride != walk[below].stride * block.extents[below]:
                return first
        first = above
    return first


def _read_axis(block: Block, axis: int) -> int | None:
    """The axis along which a read is contiguous, if that is not the axis of the write."""
    for walk in block.reads:
        if walk is None or walk[axis].stride in (0, 1):
            continue
        for other in reversed(range(axis)):
            if walk[other].stride == 1 and walk[other].run >= 8:
                return other
    return None


def _transpose(
    sch: tvm.s_tir.Schedule,
    block: Block,
    loops: list[Any],
    axes: tuple[int, int],
    traits: CpuTraits,
    parallel: bool,
) -> bool:
    """Tile both axes, so that every byte of a cache line is used when it is read or written.

    Reads are contiguous along the first axis, writes along the second.
    """
    across, axis = axes
    rows = vector_width(block.extents[across], _TRANSPOSE_TILE, 2)
    columns = vector_width(block.extents[axis], _TRANSPOSE_TILE, 1)
    across_outer, across_inner = split_off(sch, loops[across], block.extents[across], rows)
    axis_outer, axis_inner = split_off(sch, loops[axis], block.extents[axis], columns)
    outer = []
    for position, loop in enumerate(loops):
        extent = block.extents[position]
        if position == across:
            outer.append((across_outer, extent // rows))
        elif position == axis:
            outer.append((axis_outer, extent // columns))
        else:
            outer.append((loop, extent))
    if columns >= _TRANSPOSE_TILE // 2:
        sch.reorder(*[loop for loop, _ in outer], across_inner, axis_inner)
        sch.vectorize(axis_inner)
    else:
        # Few columns, such as the three of an image: vectors along rows, with scattered stores.
        sch.reorder(*[loop for loop, _ in outer], axis_inner, across_inner)
        sch.unroll(axis_inner)
        sch.vectorize(across_inner)
    if parallel:
        parallel_outer(sch, outer, traits)
    return True

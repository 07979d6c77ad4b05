"""Default schedules: good schedules without search, for kernels that are not worth tuning.

An unscheduled kernel runs serial and scalar. Here each kernel gets threads and vectors by rule: on
a CPU from the strides of its loops (`fewtune.task.access`), on a GPU from TVM's dlight.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from itertools import takewhile
from math import gcd, prod
from typing import Any, NamedTuple

import tvm_ffi

from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.executable import IS_SCHEDULED, gpu_rules
from fewtune.runtime.tvm import ms, tvm
from fewtune.schedule.blocks import (
    Block,
    Loops,
    Schedule,
    ScheduleError,
    blocks_of,
    condition_axes,
    conditions_of,
    describe,
    estimated_us,
    inline_injective,
    reduces,
    shares_inner_loop,
)
from fewtune.schedule.tiling import (
    LEAST_PARALLEL_US,
    contiguous_axis,
    divisors,
    parallel_outer,
    plain_width,
    register_tile,
    split_off,
    vector_width,
    vectorize_inner,
    vectorize_last,
)
from fewtune.task.access import nodes_of
from fewtune.task.analysis import INPUT, INPUT_ROWS, OUTPUT, OUTPUT_COLUMNS
from fewtune.task.weight_layout import FREE


def tail_of(sch: Schedule, block: Block) -> Block | None:
    """The elementwise block after a reduction.

    None unless it is the reduction's only consumer, and the reduction its only producer.
    """
    consumers = list(sch.get_consumers(block.handle))
    if len(consumers) != 1:
        return None
    tail = describe(sch, consumers[0])
    if tail is None or tail.is_reduction or len(sch.get_producers(tail.handle)) != 1:
        return None
    return None if _has_border(sch, tail) else tail


def _has_border(sch: Schedule, tail: Block) -> bool:
    """Whether an index decides if the block reads anything, as in a padding.

    Loops over the reduction's results would leave out the elements that read nothing.
    """
    conditions = conditions_of(sch.get(tail.handle))
    return any(not nodes_of(condition, tvm.ir.TensorLoad) for condition in conditions)


def attach_tail(sch: Schedule, block: Block, loop: Any, traits: CpuTraits | None) -> None:
    """Compute the block after a reduction at one of its loops, if possible, and vectorise it.

    Parameters
    ----------
    sch : Schedule
    block : Block
        The reduction.
    loop : LoopRV
    traits : CpuTraits or None
        None if each iteration of the loop has one result: there is nothing to vectorise.
    """
    tail = tail_of(sch, block)
    if tail is None:
        return
    try:
        sch.reverse_compute_at(tail.handle, loop, preserve_unit_loops=False)
    except ScheduleError:
        return
    if traits is not None and not shares_inner_loop(sch, tail.handle):
        vectorize_last(sch, tail.handle, traits, tail.data_type)


def by_lanes(sch: Schedule, block: Block, along: int, traits: CpuTraits, parallel: bool) -> bool:
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
    spatial = block.spatial(loops)
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
        lane = next(loop for loop in own[1:] or own if int(sch.get(loop).extent) == width)
        # Vectors, inside the loop over their steps.
        after = own[own.index(lane) + 1 :]
        if after and reduces(sch, partial):
            sch.reorder(*after, lane)
        vectorize_inner(sch, lane, width, lanes)
        if after:
            sch.decompose_reduction(partial, after[0])
    if place is not None:
        attach_tail(sch, block, sch.get_loops(block.handle)[0], traits=None)
    return True


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


# Reductions of up to so many steps are unrolled, such as windows of pools and depthwise kernels.
_MOST_UNROLLED_STEPS = 16
_MOST_UNROLLED_OPERATIONS = 160
# If rows are split among threads, every thread reads all weights. That pays if each thread has at
# least so many pixels.
_PIXELS_A_THREAD = 48
# Accumulators of a long reduction stay in the first-level cache.
_STREAM_ELEMENTS = 4096


class _Axes(NamedTuple):
    """The axis to vectorise, the length of its contiguous runs, and the axis that reuses reads."""

    vector: int
    run: int
    reuse: int | None


def schedule_reduction(sch: Schedule, block: Block, traits: CpuTraits) -> bool:
    """Schedule a reduction, and the elementwise block after it if there is one.

    Returns
    -------
    changed : bool

    Raises
    ------
    ScheduleError
        If TVM refuses a step; the schedule is then incomplete.
    """
    parallel = estimated_us(sch, block) >= LEAST_PARALLEL_US
    lanes = traits.lanes(block.data_type)
    along = _contiguous_reduction(block)
    axes = _axes(block)
    strided = axes is None or not _reads_contiguous(block, axes.vector)
    if strided and along is not None and block.extents[along] >= lanes // 2:
        return by_lanes(sch, block, along, traits, parallel)
    if axes is None:
        return parallel and _rows_only(sch, block, traits)
    if axes.reuse is None and block.reduction_extent > _MOST_UNROLLED_STEPS:
        return _stream(sch, block, axes, traits, parallel)
    return _register_tiled(sch, block, axes, traits, parallel)


def _axes(block: Block) -> _Axes | None:
    vector = contiguous_axis(block)
    if vector is None:
        return None
    run = gcd(block.extents[vector], *(walk[vector].run for walk in block.known_reads))
    moving = [walk for walk in block.known_reads if walk[vector].stride]
    reuse, longest = None, 1
    for axis, (kind, extent) in enumerate(zip(block.kinds, block.extents, strict=True)):
        if kind != "S" or axis == vector:
            continue
        shared = any(walk[axis].stride == 0 for walk in moving)
        # Of equal axes the innermost, whose elements are nearest in memory.
        if shared and extent > 1 and (extent >= longest or longest < 4):
            reuse, longest = axis, extent
    return _Axes(vector, run, reuse)


def _reads_contiguous(block: Block, axis: int) -> bool:
    return all(walk[axis].stride in (0, 1) for walk in block.known_reads)


def _contiguous_reduction(block: Block) -> int | None:
    """The reduction axis along which every read that moves with it is contiguous."""
    axes = enumerate(zip(block.kinds, block.extents, strict=True))
    long = [axis for axis, (kind, extent) in axes if kind == "R" and extent > 1]
    strides = {walk[long[-1]].stride for walk in block.known_reads} if long else set()
    return long[-1] if 1 in strides and strides <= {0, 1} else None


def _tile(block: Block, axes: _Axes, traits: CpuTraits, unrolled: bool) -> tuple[int, int]:
    """Rows and width of the tile of outputs that registers keep."""
    lanes, steps = traits.lanes(block.data_type), block.reduction_extent
    bound = max(1, _MOST_UNROLLED_OPERATIONS // steps) if unrolled else 1 << 30
    if axes.reuse is None:
        rows, width = 1, vector_width(axes.run, lanes, 4)
    else:
        pixels = block.extents[axes.reuse]
        rows, width = register_tile(pixels, axes.run, traits, block.data_type, bound)
    if width == 1 or not _reads_contiguous(block, axes.vector):
        # LLVM vectorises the loop. If it is short, a few rows share its loads.
        width, rows = plain_width(axes.run), 1
        if axes.reuse is not None and width < lanes:
            rows = gcd(block.extents[axes.reuse], 4)
    return rows, width


def _register_tiled(
    sch: Schedule, block: Block, axes: _Axes, traits: CpuTraits, parallel: bool
) -> bool:
    """Keep a tile of outputs in registers during the whole reduction."""
    lanes = traits.lanes(block.data_type)
    unrolled = block.reduction_extent <= _MOST_UNROLLED_STEPS
    rows, width = _tile(block, axes, traits, unrolled)
    contraction = axes.reuse is not None and not unrolled
    handle = block.handle
    if contraction and tail_of(sch, block) is None:
        # Accumulators have a buffer of their own: LLVM would store to the output in every step.
        sch.cache_write(handle, 0, "global")
    loops = list(sch.get_loops(handle))
    spatial: Loops = []
    batch: Loops = []
    inner_rows = None
    for position, loop in enumerate(loops):
        if block.kinds[position] != "S":
            continue
        extent = block.extents[position]
        if position == axes.vector:
            vector_outer, inner_vector = split_off(sch, loop, extent, width)
            vector_entry = (vector_outer, extent // width)
            spatial.append(vector_entry)
        elif position == axes.reuse:
            outer, inner_rows = split_off(sch, loop, extent, rows)
            spatial.append((outer, extent // rows))
        else:
            # Every operand moves along the batch of a batched product.
            is_moved = extent > 1 and all(walk[position].stride for walk in block.known_reads)
            (batch if contraction and is_moved else spatial).append((loop, extent))
    if contraction:
        # All pixels use one slice of the weights, which stays in the cache, then the next slice.
        # The products of a batch are computed one after the other.
        spatial.remove(vector_entry)
        pixels = block.spatial_extent // block.extents[axes.vector]
        own_rows = [] if batch else _rows_of_threads(sch, pixels, spatial, traits)
        spatial = [*batch, *own_rows, vector_entry, *spatial]
    reductions = [loop for loop, kind in zip(loops, block.kinds, strict=True) if kind == "R"]
    inner = [inner_vector] if inner_rows is None else [inner_rows, inner_vector]
    sch.reorder(*[loop for loop, _ in spatial], *reductions, *inner)
    if parallel:
        place = parallel_outer(sch, spatial, traits, keep=0 if contraction else 1)
    else:
        place = spatial[-1][0]
    attach_tail(sch, block, place, traits)
    if inner_rows is not None:
        sch.unroll(inner_rows)
    if unrolled:
        for loop in reductions:
            sch.unroll(loop)
    vectorize_inner(sch, inner_vector, width, lanes)
    start = sch.decompose_reduction(handle, reductions[0])
    # It keeps vectors, but not unrolled loops.
    if inner_rows is not None and not _is_scheduled(sch, row := sch.get_loops(start)[-2]):
        sch.unroll(row)
    return True


def _rows_of_threads(sch: Schedule, pixels: int, spatial: Loops, traits: CpuTraits) -> Loops:
    """Split the outermost rows among the threads, if there are enough rows.

    Kernels without a reduction split rows. If the kernel before them splits columns, half of their
    input is in the other core's cache. Each of eleven scalings of 14x14 planes in DenseNet 121 took
    0.05 to 0.1 ms after such a convolution, others took 0.014 ms (an EPYC).

    Returns
    -------
    parts : list of (loop, extent)
        The loop over threads, or none. The loop inside it replaces the split loop in ``spatial``.
    """
    if traits.threads == 1 or pixels < _PIXELS_A_THREAD * traits.threads:
        return []
    for place, (loop, extent) in enumerate(spatial):
        if extent % traits.threads == 0:
            part, rest = split_off(sch, loop, extent, extent // traits.threads)
            spatial[place] = (rest, extent // traits.threads)
            return [(part, traits.threads)]
        if extent > 1:
            break
    return []


def _stream(sch: Schedule, block: Block, axes: _Axes, traits: CpuTraits, parallel: bool) -> bool:
    """Read memory once, in its order, and add to a row of accumulators in the cache.

    For matrix-vector products and means over pixels. They use every element once, so they gain by
    whole cache lines, not by register tiles.
    """
    lanes = traits.lanes(block.data_type)
    extent = block.extents[axes.vector]
    others = block.spatial_extent // extent
    wanted = 1 if others >= 2 * traits.threads or not parallel else 2 * traits.threads
    usable = [
        d for d in divisors(extent) if d <= _STREAM_ELEMENTS and extent // d * others >= wanted
    ]
    chunk = max(usable, key=lambda d: (d >= 4 * lanes, gcd(d, lanes), d))
    width = vector_width(gcd(chunk, axes.run), lanes, 2)
    if width == 1:
        width = plain_width(chunk)
    loops = list(sch.get_loops(block.handle))
    own, spatial = block.kinds[: axes.vector].count("S"), block.spatial(loops)
    outer, middle, inner = sch.split(spatial[own][0], [extent // chunk, chunk // width, width])
    spatial[own] = (outer, extent // chunk)
    reductions = [loop for loop, kind in zip(loops, block.kinds, strict=True) if kind == "R"]
    last = max(i for i, kind in enumerate(block.kinds) if kind == "R")
    step = max(d for d in divisors(block.extents[last]) if d <= 8)
    if step > 1:
        reductions[-1], steps = split_off(sch, reductions[-1], block.extents[last], step)
        sch.reorder(*[s for s, _ in spatial], *reductions, middle, steps, inner)
        sch.unroll(steps)
    else:
        sch.reorder(*[s for s, _ in spatial], *reductions, middle, inner)
    place = parallel_outer(sch, spatial, traits) if parallel else spatial[-1][0]
    attach_tail(sch, block, place, traits)
    vectorize_inner(sch, inner, width, lanes)
    sch.decompose_reduction(block.handle, reductions[0])
    return True


def _rows_only(sch: Schedule, block: Block, traits: CpuTraits) -> bool:
    """Run the spatial loops in parallel, without vectors."""
    outer = block.spatial(list(sch.get_loops(block.handle)))
    if not outer or block.kinds[: len(outer)] != "S" * len(outer):
        return False
    place = parallel_outer(sch, outer, traits)
    attach_tail(sch, block, place, traits)
    return True


def schedule_rows(sch: Schedule, traits: CpuTraits) -> bool:
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
    work_us = sum((estimated_us(sch, block) for block in blocks), 0.0)
    rows = [(loop, last.extents[i]) for i, loop in enumerate(sch.get_loops(last.handle)[:shared])]
    if work_us < LEAST_PARALLEL_US:
        outer = sch.fuse(*[loop for loop, _ in rows]) if shared > 1 else rows[0][0]
    elif prod(extent for _, extent in rows) >= traits.threads:
        outer = parallel_outer(sch, rows, traits)
    else:
        return False
    steps = [[*_in_lanes(sch, block, traits), block.handle] for block in blocks]
    for handle in reversed([each for own in steps for each in own][:-1]):
        sch.compute_at(handle, outer, preserve_unit_loops=True)
    for block, (*before, _) in zip(blocks, steps, strict=True):
        for each in before:
            _vectorize_lanes(sch, each, outer)
        if not block.is_reduction and _inside(sch, block.handle, outer):
            vectorize_last(sch, block.handle, traits, block.data_type, most_vectors=1)
    return True


def _shared_axes(blocks: list[Block]) -> int:
    """The number of leading axes that are spatial and have the same extent in all blocks."""
    axes = zip(*(zip(block.kinds, block.extents, strict=True) for block in blocks), strict=False)
    shared = [*takewhile(lambda axis: axis[0][0] == "S" and len({*axis}) == 1, axes)]
    # The last axis of the result stays inside the loop, to be vectorised.
    return min(len(shared), len(blocks[-1].extents) - 1)


def _in_lanes(sch: Schedule, block: Block, traits: CpuTraits) -> list[Any]:
    """Reduce along the last axis into the lanes of a vector, and these into a quarter of the lanes.

    This is possible only before the block is computed at the loop over rows.

    Returns
    -------
    partial : list
        The new blocks of partial results, in order; none if the block is unchanged.
    """
    if not block.is_reduction or len(block.writes) > 1:
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


def _inside(sch: Schedule, handle: Any, outer: Any) -> list[Any]:
    """The loops of a block inside the loop over rows."""
    loops = list(sch.get_loops(handle))
    return loops[[sch.get(loop).same_as(sch.get(outer)) for loop in loops].index(True) + 1 :]


def _vectorize_lanes(sch: Schedule, partial: Any, outer: Any) -> None:
    """Vectorise partial results, so that they stay in a register during their reduction."""
    lane, *_, step = _inside(sch, partial, outer)
    sch.reorder(step, lane)
    sch.vectorize(lane)
    sch.decompose_reduction(partial, step)


# Elements of a cache line in fp32: tiles of this size use every byte of the lines that they load.
_TRANSPOSE_TILE = 16


def schedule_injective(sch: Schedule, block: Block, traits: CpuTraits) -> bool:
    """Vectorise the contiguous axis and run the others in parallel; as `schedule_reduction`."""
    parallel = estimated_us(sch, block) >= LEAST_PARALLEL_US
    axis = contiguous_axis(block)
    loops = list(sch.get_loops(block.handle))
    sized = list(zip(loops, block.extents, strict=True))
    if axis is None or axis != block.long_axes[-1]:
        if parallel:
            parallel_outer(sch, sized, traits, keep=max(0, len(sized) - 1))
        return parallel
    across = _read_axis(block, axis)
    if across is not None:
        tiles = _transpose(sch, block, sized, across, axis)
        if parallel:
            parallel_outer(sch, tiles, traits)
        return True
    chosen = condition_axes(sch, block.handle)
    first = max(_first_fusible(block, axis), *(min(i + 1, axis) for i in (-1, *chosen)))
    extent = prod(block.extents[first : axis + 1])
    walks = [walk for walk in (*block.reads, *block.writes) if walk is not None]
    run = extent if first < axis else gcd(extent, *(w[axis].run for w in walks))
    inner = sch.fuse(*loops[first : axis + 1]) if first < axis else loops[axis]
    outer = sized[:first]
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


def _first_fusible(block: Block, axis: int) -> int:
    """The first axis such that it and those up to ``axis`` are contiguous in every tensor."""
    accesses = [*block.reads, *block.writes]
    walks = [walk for walk in accesses if walk is not None]
    if len(walks) < len(accesses):
        return axis
    for below in range(axis, 0, -1):
        above = below - 1
        for walk in walks:
            long = walk[above].run == block.extents[above], walk[below].run == block.extents[below]
            if block.extents[above] == 1 or (block.extents[below] == 1 and above < axis - 1):
                continue
            if not all(long) or walk[above].stride != walk[below].stride * block.extents[below]:
                return below
    return 0


def _read_axis(block: Block, axis: int) -> int | None:
    """The axis along which a read is contiguous, if that is not the axis of the write."""
    strided = [walk for walk in block.known_reads if walk[axis].stride not in (0, 1)]
    pairs = ((walk[other], other) for walk in strided for other in reversed(range(axis)))
    return next((other for walk, other in pairs if walk.stride == 1 and walk.run >= 8), None)


def _transpose(sch: Schedule, block: Block, sized: Loops, across: int, axis: int) -> Loops:
    """Tile both axes, so that every byte of a cache line is used when it is read or written.

    Reads are contiguous along the first axis, writes along the second. Returns the outer loops.
    """
    rows = vector_width(block.extents[across], _TRANSPOSE_TILE, 2)
    columns = vector_width(block.extents[axis], _TRANSPOSE_TILE, 1)
    widths = {across: rows, axis: columns}
    outer, inner = [], []
    for position, (loop, extent) in enumerate(sized):
        if position in widths:
            loop, tile = split_off(sch, loop, extent, widths[position])
            inner.append(tile)
        outer.append((loop, extent // widths.get(position, 1)))
    # Few columns, such as the three of an image: vectors along rows, with scattered stores.
    is_narrow = columns < _TRANSPOSE_TILE // 2
    beside, vector = reversed(inner) if is_narrow else inner
    sch.reorder(*[loop for loop, _ in outer], beside, vector)
    if is_narrow:
        sch.unroll(beside)
    sch.vectorize(vector)
    return outer


_SEVERAL = 2
# Shorter vectors gain nothing over LLVM's own vectorisation.
_LEAST_LANES = 2


def schedule_winograd(sch: Schedule, traits: CpuTraits) -> bool:
    """Schedule a transform of the input or the output.

    Returns
    -------
    changed : bool
        False if the kernel is neither; the schedule is then unchanged.
    """
    names = {str(sch.get(handle).name_hint) for handle in blocks_of(sch)}
    if names >= {INPUT_ROWS, INPUT}:
        return _input(sch, traits)
    return names >= {OUTPUT_COLUMNS, OUTPUT} and _output(sch, traits)


def _extents(sch: Schedule, handle: Any) -> list[int]:
    return [int(sch.get(loop).extent) for loop in sch.get_loops(handle)]


def _vector(channels: int, traits: CpuTraits) -> int:
    """Channels of one step: a vector or a part of one that divides them; else all.

    With all 24 channels of a small output in one step, the unrolled loops took LLVM half a second.
    """
    part = gcd(channels, traits.lanes("float32"))
    return part if part >= _LEAST_LANES else channels


def _vectorize(sch: Schedule, loop: Any, traits: CpuTraits) -> None:
    # LLVM vectorises loops of other lengths, with a scalar remainder.
    extent = int(sch.get(loop).extent)
    if extent >= _LEAST_LANES and traits.lanes("float32") % extent == 0:
        sch.vectorize(loop)


def _input(sch: Schedule, traits: CpuTraits) -> bool:
    first, second = sch.get_sblock(INPUT_ROWS), sch.get_sblock(INPUT)
    places, channels = _extents(sch, first)[2], _extents(sch, first)[-1]
    lanes = _vector(channels, traits)
    place, tile, channel = sch.get_loops(second)
    above, beside = sch.split(place, [places, places])
    vectors, lane = sch.split(channel, [channels // lanes, lanes])
    sch.reorder(tile, vectors, above, beside, lane)
    # Each tile computes the two columns that it shares with the next one. That is faster than
    # keeping a row of tiles (1.2 ms instead of 3.3 for 224 x 224 x 64).
    sch.compute_at(first, vectors, preserve_unit_loops=True)
    sch.parallel(tile)
    sch.unroll(beside)
    _vectorize(sch, lane, traits)
    *_, own_place, own_column, own_lane = sch.get_loops(first)
    sch.reorder(own_column, own_place, own_lane)
    sch.unroll(own_column)
    sch.unroll(own_place)
    _vectorize(sch, own_lane, traits)
    return True


def _output(sch: Schedule, traits: CpuTraits) -> bool:
    first, second = sch.get_sblock(OUTPUT_COLUMNS), sch.get_sblock(OUTPUT)
    batch, rows, columns, places, m, filters = _extents(sch, first)
    lanes = _vector(filters, traits)
    _inline_tail(sch, second)
    b, y, x, n = sch.get_loops(second)
    row, below = sch.split(y, [None, m])
    column, beside = sch.split(x, [None, m])
    vectors, lane = sch.split(n, [filters // lanes, lanes])
    sch.reorder(b, row, column, vectors, below, beside, lane)
    outer = [b, row, column]
    if prod([batch, rows, columns]) < 4 * traits.threads:
        outer.append(vectors)
    thread = sch.fuse(*outer)
    sch.compute_at(first, vectors if len(outer) == 3 else thread, preserve_unit_loops=True)
    sch.parallel(thread)
    sch.unroll(below)
    sch.unroll(beside)
    _vectorize(sch, lane, traits)
    *_, own_place, own_beside, own_lane = sch.get_loops(first)
    sch.unroll(own_place)
    sch.unroll(own_beside)
    _vectorize(sch, own_lane, traits)
    return True


def _inline_tail(sch: Schedule, block: Any) -> None:
    """Inline the blocks after the transform into it: bias, residual, activation.

    Raises
    ------
    ScheduleError
        If a block cannot be inlined.
    """
    for handle in blocks_of(sch):
        name = sch.get(handle).name_hint
        # A leaky activation reads its argument twice, so blocks are first inlined into consumers.
        if name not in (OUTPUT, OUTPUT_COLUMNS) and sch.get_consumers(handle):
            sch.compute_inline(handle)
    for handle in sch.get_consumers(block):
        sch.reverse_compute_inline(handle)


_LOG = logging.getLogger(__name__)


def default_schedule(mod: tvm.IRModule, target: tvm.target.Target) -> Schedule | None:
    """Schedule one kernel by rule.

    On a CPU, the outer loop is parallel, the inner loop is vectorised, and the epilogue is fused.
    On a GPU, the first rule of dlight that applies decides.

    Parameters
    ----------
    mod : tvm.IRModule
        One unscheduled TensorIR function named ``main``.
    target : tvm.target.Target
        For a CPU, ``num-cores`` and the vector extensions of ``mcpu`` decide the tiles.

    Returns
    -------
    schedule : Schedule or None
        Its trace holds every step, so it can be stored as a tuning record. None if no rule applies,
        as to a very small kernel; a rule that raises does not apply.
    """
    if "gpu" in list(target.keys):
        return _by_dlight(mod, target)
    traits = CpuTraits.of(target)
    for attempt in (_whole, _inlined, _block_by_block, _outermost):
        try:
            sch = Schedule(mod, debug_mask="none", error_render_level="none")
            if attempt(sch, traits):
                return _laid_out(sch)
        except Exception as fault:  # noqa: BLE001 (a default must not stop a compilation)
            _LOG.debug("%s: %s", attempt.__name__, fault)
    return None


def _laid_out(sch: Schedule) -> Schedule:
    """The schedule with its weights in the order of its loops, as in MetaSchedule's candidates.

    In the model's layout, a register tile reads a few cache lines of each row of weights and skips
    the rest. By default schedules, SSD512's products took 206 ms so, and 159 ms with weights in the
    order of the loops (an EPYC).
    """
    if FREE not in (sch.mod["main"].attrs or {}):
        return sch
    laid_out = sch.copy()
    laid_out.enter_postproc()
    try:
        return laid_out if ms.postproc.RewriteLayout().apply(laid_out) else sch
    except Exception as fault:  # noqa: BLE001 (as above)
        _LOG.debug("weights stay as they are: %s", fault)
        return sch


def apply_default_schedules(
    mod: tvm.IRModule,
    names: Iterable[str],
    target: tvm.target.Target,
    known: dict[int, tvm.tirx.PrimFunc | None] | None = None,
) -> tvm.IRModule:
    """Schedule some kernels of a lowered model by rule.

    Parameters
    ----------
    mod : tvm.IRModule
        The whole lowered model; it is not changed.
    names : Iterable[str]
        Names of kernels; scheduled ones, and those that are not TensorIR functions, are skipped.
    target : tvm.target.Target
    known : dict, optional
        Scheduled kernels by structural hash, from another version of the same model. New ones are
        added.

    Returns
    -------
    mod : tvm.IRModule
        The model with those kernels replaced and marked ``tirx.is_scheduled``.
    """
    made = {} if known is None else known
    chosen, functions = set(names), dict(mod.functions_items())
    for variable, function in mod.functions_items():
        if variable.name_hint not in chosen or not isinstance(function, tvm.tirx.PrimFunc):
            continue
        if (function.attrs or {}).get(IS_SCHEDULED):
            continue
        key = tvm_ffi.structural_hash(function.with_attr("global_symbol", "main"))
        if key not in made:
            made[key] = _scheduled(function, target)
        scheduled, symbol = made[key], (function.attrs or {}).get("global_symbol")
        if scheduled is not None and symbol is not None:
            scheduled = scheduled.with_attr("global_symbol", symbol)
        functions[variable] = scheduled or function
    return tvm.IRModule(functions, attrs=mod.attrs)


def _scheduled(function: tvm.tirx.PrimFunc, target: tvm.target.Target) -> tvm.tirx.PrimFunc | None:
    sch = default_schedule(tvm.IRModule({"main": function}), target)
    if sch is None:
        return None
    scheduled = sch.mod["main"]
    return tvm.tirx.PrimFunc(
        scheduled.params, scheduled.body, scheduled.ret_type, function.attrs
    ).with_attr(IS_SCHEDULED, True)


def _by_dlight(mod: tvm.IRModule, target: tvm.target.Target) -> Schedule | None:
    for rule in gpu_rules():
        try:
            with target:
                made = rule.apply(mod["main"], target, False)
        except Exception as fault:  # noqa: BLE001 (dlight refuses in many ways: next rule)
            _LOG.debug("%s: %s", type(rule).__name__, fault)
            continue
        made = made[0] if isinstance(made, list) else made
        if made is not None:
            return made
    return None


def _whole(sch: Schedule, traits: CpuTraits) -> bool:
    """A transform, or several reductions, as of a softmax, inside the rows that they share."""
    if schedule_winograd(sch, traits):
        return True
    if sum(reduces(sch, handle) for handle in blocks_of(sch)) < _SEVERAL:
        return False
    inline_injective(sch)
    return schedule_rows(sch, traits)


def _inlined(sch: Schedule, traits: CpuTraits) -> bool:
    """Inline, then schedule each block."""
    inline_injective(sch)
    return _each(sch, traits)


def _block_by_block(sch: Schedule, traits: CpuTraits) -> bool:
    """Schedule each block without inlining, and skip blocks that TVM refuses to schedule."""
    return _each(sch, traits, forgiving=True)


def _each(sch: Schedule, traits: CpuTraits, forgiving: bool = False) -> bool:
    changed = False
    for handle in blocks_of(sch):
        try:
            block = describe(sch, handle)
            if block is None or any(_is_scheduled(sch, loop) for loop in sch.get_loops(handle)):
                continue
            if not block.is_reduction and shares_inner_loop(sch, handle):
                continue
            plan = schedule_reduction if block.is_reduction else schedule_injective
            changed = plan(sch, block, traits) or changed
        except ScheduleError:
            if not forgiving:
                raise
    return changed


def _is_scheduled(sch: Schedule, loop: tvm.s_tir.schedule.LoopRV) -> bool:
    return int(sch.get(loop).kind) != int(tvm.tirx.ForKind.SERIAL)


def _outermost(sch: Schedule, traits: CpuTraits) -> bool:
    """The last resort: the first long loop of each block runs in parallel, if TVM allows it."""
    changed = False
    for handle in blocks_of(sch):
        for loop in sch.get_loops(handle):
            if int(getattr(sch.get(loop).extent, "value", 0)) < traits.threads:
                continue
            with suppress(ScheduleError):
                sch.parallel(loop)
                changed = True
            break
    return changed

"""Default schedules of kernels with one reduction: convolution, matrix product, pooling, mean."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod
from typing import Any

import tvm_ffi

from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.tvm import tvm
from fewtune.schedule.blocks import (
    IF_THEN_ELSE,
    Block,
    ScheduleError,
    blocks_of,
    describe,
    estimated_us,
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


def tail_of(sch: tvm.s_tir.Schedule, block: Block) -> Block | None:
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


def _has_border(sch: tvm.s_tir.Schedule, tail: Block) -> bool:
    """Whether an index decides if the block reads anything, as in a padding.

    Loops over the reduction's results would leave out the elements that read nothing.
    """
    found = False

    def visit(call: Any) -> None:
        nonlocal found
        if getattr(call.op, "name", "").endswith(IF_THEN_ELSE):
            found |= not _loads(call.args[0])

    tvm_ffi.structural_walk(sch.get(tail.handle).body, [(tvm.ir.Call, visit)], order="post")
    return found


def _loads(value: Any) -> bool:
    """Whether an expression reads a tensor."""
    loads: list[Any] = []
    tvm_ffi.structural_walk(value, [(tvm.ir.TensorLoad, loads.append)], order="post")
    return bool(loads)


def attach_tail(sch: tvm.s_tir.Schedule, block: Block, loop: Any, traits: CpuTraits | None) -> None:
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


# Reductions of up to so many steps are unrolled, such as windows of pools and depthwise kernels.
_MOST_UNROLLED_STEPS = 16
_MOST_UNROLLED_OPERATIONS = 160
# If rows are split among threads, every thread reads all weights. That pays if each thread has at
# least so many pixels.
_PIXELS_A_THREAD = 48
# Accumulators of a long reduction stay in the first-level cache.
_STREAM_ELEMENTS = 4096


@dataclass(frozen=True)
class _Axes:
    """The axis to vectorise, the length of its contiguous runs, and the axis that reuses reads."""

    vector: int
    run: int
    reuse: int | None


def schedule_reduction(sch: tvm.s_tir.Schedule, block: Block, traits: CpuTraits) -> bool:
    """Schedule a reduction, and the elementwise block after it if there is one.

    Returns
    -------
    changed : bool

    Raises
    ------
    ScheduleError
        If TVM refuses a step; the schedule is then incomplete.
    """
    parallel = estimated_us(sch, block.handle, block) >= LEAST_PARALLEL_US
    lanes = traits.lanes(block.data_type)
    along = _contiguous_reduction(block)
    axes = _axes(block)
    strided = axes is None or not _reads_contiguous(block, axes.vector)
    if strided and along is not None and block.extents[along] >= lanes // 2:
        return across_lanes(sch, block, along, traits, parallel)
    if axes is None:
        return parallel and _rows_only(sch, block, traits)
    if axes.reuse is None and block.reduction_extent > _MOST_UNROLLED_STEPS:
        return _stream(sch, block, axes, traits, parallel)
    return _register_tiled(sch, block, axes, traits, parallel)


def _axes(block: Block) -> _Axes | None:
    vector = contiguous_axis(block)
    if vector is None:
        return None
    run = block.extents[vector]
    for walk in block.reads:
        if walk is not None:
            run = gcd(run, walk[vector].run)
    reuse, longest = None, 1
    for axis, (kind, extent) in enumerate(zip(block.kinds, block.extents, strict=True)):
        if kind != "S" or axis == vector:
            continue
        shared = any(
            walk is not None and walk[vector].stride != 0 and walk[axis].stride == 0
            for walk in block.reads
        )
        # Of equal axes the innermost, whose elements are nearest in memory.
        if shared and extent > 1 and (extent >= longest or longest < 4):
            reuse, longest = axis, extent
    return _Axes(vector, run, reuse)


def _reads_contiguous(block: Block, axis: int) -> bool:
    return all(walk is None or walk[axis].stride in (0, 1) for walk in block.reads)


def _contiguous_reduction(block: Block) -> int | None:
    """The reduction axis along which every read that moves with it is contiguous."""
    for axis in reversed(range(len(block.kinds))):
        if block.kinds[axis] != "R" or block.extents[axis] == 1:
            continue
        walks = [walk for walk in block.reads if walk is not None]
        if walks and all(walk[axis].stride in (0, 1) for walk in walks):
            return axis if any(walk[axis].stride == 1 for walk in walks) else None
        return None
    return None


def _is_unrolled(block: Block) -> bool:
    return block.reduction_extent <= _MOST_UNROLLED_STEPS


def _tile(block: Block, axes: _Axes, traits: CpuTraits) -> tuple[int, int]:
    """Rows and width of the tile of outputs that registers keep."""
    lanes, steps = traits.lanes(block.data_type), block.reduction_extent
    bound = max(1, _MOST_UNROLLED_OPERATIONS // steps) if _is_unrolled(block) else 1 << 30
    if axes.reuse is None:
        rows, width = 1, vector_width(axes.run, lanes, 4)
    else:
        rows, width = register_tile(
            block.extents[axes.reuse], axes.run, traits, block.data_type, bound
        )
    if width == 1 or not _reads_contiguous(block, axes.vector):
        # LLVM vectorises the loop. If it is short, a few rows share its loads.
        width, rows = plain_width(axes.run), 1
        if axes.reuse is not None and width < lanes:
            rows = gcd(block.extents[axes.reuse], 4)
    return rows, width


def _register_tiled(
    sch: tvm.s_tir.Schedule, block: Block, axes: _Axes, traits: CpuTraits, parallel: bool
) -> bool:
    """Keep a tile of outputs in registers during the whole reduction."""
    lanes, unrolled = traits.lanes(block.data_type), _is_unrolled(block)
    rows, width = _tile(block, axes, traits)
    contraction = axes.reuse is not None and not unrolled
    handle = block.handle
    if contraction and tail_of(sch, block) is None:
        # Accumulators have a buffer of their own: LLVM would store to the output in every step.
        sch.cache_write(handle, 0, "global")
    loops = list(sch.get_loops(handle))
    spatial: list[tuple[Any, int]] = []
    batch: list[tuple[Any, int]] = []
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
            is_batch = contraction and _is_batch(block, position)
            (batch if is_batch else spatial).append((loop, extent))
    if contraction:
        # All pixels use one slice of the weights, which stays in the cache, then the next slice.
        # The products of a batch are computed one after the other.
        spatial.remove(vector_entry)
        own_rows = [] if batch else _rows_of_threads(sch, block, axes, spatial, traits)
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
    _unroll_start(sch, start, 0 if inner_rows is None else 1)
    return True


def _rows_of_threads(
    sch: tvm.s_tir.Schedule,
    block: Block,
    axes: _Axes,
    spatial: list[tuple[Any, int]],
    traits: CpuTraits,
) -> list[tuple[Any, int]]:
    """Split the outermost rows among the threads, if there are enough rows.

    Kernels without a reduction split rows. If the kernel before them splits columns, half of their
    input is in the other core's cache. Each of eleven scalings of 14x14 planes in DenseNet 121 took
    0.05 to 0.1 ms after such a convolution, others took 0.014 ms (an EPYC).

    Returns
    -------
    parts : list of (loop, extent)
        The loop over threads, or none. The loop inside it replaces the split loop in ``spatial``.
    """
    pixels = block.spatial_extent // block.extents[axes.vector]
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


def _is_batch(block: Block, axis: int) -> bool:
    """Whether every operand moves along an axis, as along the batch of a batched product."""
    walks = [walk for walk in block.reads if walk is not None]
    return block.extents[axis] > 1 and all(walk[axis].stride != 0 for walk in walks)


def _unroll_start(sch: tvm.s_tir.Schedule, start: Any, count: int) -> None:
    """Unroll the initialisation: `decompose_reduction` keeps vectors, but not unrolled loops."""
    loops = list(sch.get_loops(start))
    for loop in loops:
        node = sch.get(loop)
        if int(node.kind) == int(tvm.tirx.ForKind.SERIAL) and count and loop is loops[-1 - count]:
            sch.unroll(loop)


def _stream(
    sch: tvm.s_tir.Schedule, block: Block, axes: _Axes, traits: CpuTraits, parallel: bool
) -> bool:
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
    spatial: list[tuple[Any, int]] = []
    for position, loop in enumerate(loops):
        if block.kinds[position] != "S":
            continue
        if position == axes.vector:
            outer, middle, inner = sch.split(loop, [extent // chunk, chunk // width, width])
            spatial.append((outer, extent // chunk))
        else:
            spatial.append((loop, block.extents[position]))
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


def _rows_only(sch: tvm.s_tir.Schedule, block: Block, traits: CpuTraits) -> bool:
    """Run the spatial loops in parallel, without vectors."""
    loops = sch.get_loops(block.handle)
    outer = [
        (loop, extent)
        for loop, kind, extent in zip(loops, block.kinds, block.extents, strict=True)
        if kind == "S"
    ]
    if not outer or block.kinds[: len(outer)] != "S" * len(outer):
        return False
    place = parallel_outer(sch, outer, traits)
    attach_tail(sch, block, place, traits)
    return True


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
        if not block.is_reduction and _inside(sch, block.handle, outer):
            vectorize_last(sch, block.handle, traits, block.data_type, most_vectors=1)
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

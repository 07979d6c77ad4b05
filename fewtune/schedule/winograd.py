"""Default schedules of Winograd's transforms (`fewtune.model.winograd`).

Both stream through memory once: what lies between their two blocks stays in a core's cache, and
the rows of the transform matrices are unrolled, so that their zeros and ones cost nothing.
"""

from __future__ import annotations

from math import prod
from typing import Any

from fewtune.model.winograd import INPUT, INPUT_ROWS, OUTPUT, OUTPUT_COLUMNS
from fewtune.schedule.blocks import CpuTraits, ScheduleError, blocks_of
from fewtune.schedule.tiling import divisors
from fewtune.tvm_runtime import tvm

# What one thread keeps of the input's first block: half of a second-level cache.
_MOST_KEPT_BYTES = 256 * 1024


def schedule_winograd(sch: tvm.s_tir.Schedule, traits: CpuTraits) -> bool:
    """Schedule a transform of the input or the output.

    Returns
    -------
    changed : bool
        False, and the schedule as it was, where the kernel is neither.
    """
    names = [sch.get(handle).name_hint for handle in blocks_of(sch)]
    if INPUT_ROWS in names and INPUT in names:
        return _input(sch, traits)
    if OUTPUT_COLUMNS in names and OUTPUT in names:
        return _output(sch, traits)
    return False


def _extents(sch: tvm.s_tir.Schedule, handle: Any) -> list[int]:
    return [int(sch.get(loop).extent) for loop in sch.get_loops(handle)]


def _vector(channels: int, traits: CpuTraits) -> int:
    lanes = traits.lanes("float32")
    return lanes if channels % lanes == 0 else 0


def _input(sch: tvm.s_tir.Schedule, traits: CpuTraits) -> bool:
    first, second = sch.get_sblock(INPUT_ROWS), sch.get_sblock(INPUT)
    batch, rows, places, across, channels = _extents(sch, first)
    lanes = _vector(channels, traits)
    if not lanes:
        return False
    columns = _extents(sch, second)[1] // (batch * rows)
    chunk = _chunk(channels, lanes, places * across * 4, batch * rows, traits.threads)
    place, tile, channel = sch.get_loops(second)
    above, beside = sch.split(place, [places, places])
    row, column = sch.split(tile, [batch * rows, columns])
    outer, inner = sch.split(channel, [channels // chunk, chunk])
    vectors, lane = sch.split(inner, [chunk // lanes, lanes])
    sch.reorder(row, outer, column, vectors, above, beside, lane)
    thread = sch.fuse(row, outer)
    sch.compute_at(first, thread, preserve_unit_loops=True)
    sch.parallel(thread)
    sch.unroll(beside)
    sch.vectorize(lane)
    # Of the first block, inside: batch, row, place, column, channel.
    *_, own_place, own_column, own_channel = sch.get_loops(first)
    own_vectors, own_lane = sch.split(own_channel, [chunk // lanes, lanes])
    sch.reorder(own_column, own_vectors, own_place, own_lane)
    sch.unroll(own_place)
    sch.vectorize(own_lane)
    return True


def _chunk(channels: int, lanes: int, bytes_each: int, rows: int, threads: int) -> int:
    """How many channels a thread takes at once: what fits its cache, and leaves enough to do."""
    fitting = [
        size
        for size in divisors(channels)
        if size % lanes == 0 and size * bytes_each <= _MOST_KEPT_BYTES
    ]
    busy = [size for size in fitting if rows * (channels // size) >= 4 * threads]
    return max(busy or fitting[:1] or [lanes])


def _output(sch: tvm.s_tir.Schedule, traits: CpuTraits) -> bool:
    first, second = sch.get_sblock(OUTPUT_COLUMNS), sch.get_sblock(OUTPUT)
    batch, rows, columns, places, m, filters = _extents(sch, first)
    lanes = _vector(filters, traits)
    if not lanes:
        return False
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
    sch.vectorize(lane)
    *_, own_place, own_beside, own_lane = sch.get_loops(first)
    sch.unroll(own_place)
    sch.unroll(own_beside)
    sch.vectorize(own_lane)
    return True


def _inline_tail(sch: tvm.s_tir.Schedule, block: Any) -> None:
    """Fold what follows the transform, block after block, into it.

    Raises
    ------
    ScheduleError
        If something that follows cannot be folded.
    """
    # What else feeds the tail (a broadcast bias) is folded into the tail first.
    for handle in blocks_of(sch):
        name = sch.get(handle).name_hint
        if name in (OUTPUT, OUTPUT_COLUMNS) or not sch.get_consumers(handle):
            continue
        if any(True for _ in sch.get_producers(handle)):
            continue
        sch.compute_inline(handle)
    while True:
        consumers = list(sch.get_consumers(block))
        if not consumers:
            return
        if len(consumers) > 1:
            raise ScheduleError("more than one block reads the transform's result")
        sch.reverse_compute_inline(consumers[0])

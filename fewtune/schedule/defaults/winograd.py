"""Default schedules of Winograd's transforms (`fewtune.model.passes.winograd`).

Both read and write memory once. The tile between their two blocks has one vector of channels and
stays in the first-level cache. Loops over the rows of the transform matrices are unrolled, so that
zeros and ones in these cost nothing.
"""

from __future__ import annotations

from math import gcd, prod
from typing import Any

from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.tvm import tvm
from fewtune.schedule.blocks import blocks_of
from fewtune.task.analysis import INPUT, INPUT_ROWS, OUTPUT, OUTPUT_COLUMNS

# Shorter vectors gain nothing over LLVM's own vectorisation.
_LEAST_LANES = 2


def schedule_winograd(sch: tvm.s_tir.Schedule, traits: CpuTraits) -> bool:
    """Schedule a transform of the input or the output.

    Returns
    -------
    changed : bool
        False if the kernel is neither; the schedule is then unchanged.
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
    """Channels of one step: a vector or a part of one that divides them; else all.

    With all 24 channels of a small output in one step, the unrolled loops took LLVM half a second.
    """
    part = gcd(channels, traits.lanes("float32"))
    return part if part >= _LEAST_LANES else channels


def _vectorize(sch: tvm.s_tir.Schedule, loop: Any, traits: CpuTraits) -> None:
    # LLVM vectorises loops of other lengths, with a scalar remainder.
    extent = int(sch.get(loop).extent)
    if extent >= _LEAST_LANES and traits.lanes("float32") % extent == 0:
        sch.vectorize(loop)


def _input(sch: tvm.s_tir.Schedule, traits: CpuTraits) -> bool:
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


def _output(sch: tvm.s_tir.Schedule, traits: CpuTraits) -> bool:
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


def _inline_tail(sch: tvm.s_tir.Schedule, block: Any) -> None:
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

"""Tile sizes, and the loop transformations that all default schedules share."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from math import gcd, prod
from typing import Any

from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.schedule.blocks import Block, Loops, Schedule, ScheduleError

# With less work on one core than this, starting threads (about 5 us) costs more than it gains.
LEAST_PARALLEL_US = 10.0
# At most a 24th of the rows may be added as padding, if the rule expects at least this gain.
_MOST_ADDED, _LEAST_RATE_GAIN = 24, 1.09
# Speed of row tiles that do not come in groups, of which blocks for caches and threads are made. A
# speech encoder with 1,599 and 801 rows (533 and 267 tiles of three) took 1.21 times as long as
# with 1,600 and 800, with 1,602 and 804 1.10 times (a Zen 3, in turns).
_UNGROUPED = 0.8


def divisors(number: int) -> list[int]:
    """The divisors of a positive number, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def round_up(extent: int, multiple: int) -> int:
    """The least multiple that is not below an extent."""
    return -(-extent // multiple) * multiple


def vector_width(extent: int, lanes: int, most_vectors: int) -> int:
    """The divisor of ``extent`` to vectorise; 1 if none is good.

    Good are whole registers, and powers of two below one. A vector of 63 fp32 runs ten times slower
    than the plain loop, which LLVM vectorises with a scalar remainder.

    Parameters
    ----------
    extent, lanes : int
    most_vectors : int
        Most registers.
    """
    whole = [count * lanes for count in range(most_vectors, 0, -1) if extent % (count * lanes) == 0]
    if whole:
        return whole[0]
    part = gcd(extent, lanes)
    if part < max(2, lanes // 4):
        return 1
    return max(part * count for count in range(1, most_vectors + 1) if extent % (part * count) == 0)


def plain_width(extent: int) -> int:
    """The extent of an innermost loop that LLVM is to vectorise: the largest divisor up to 1024."""
    return max(d for d in divisors(extent) if d <= 1024)


def register_tile(
    pixels: int, width: int, traits: CpuTraits, data_type: str, most_unrolled: int = 1 << 30
) -> tuple[int, int]:
    """The register tile of a contraction: rows that share a weight vector, and its elements.

    Parameters
    ----------
    pixels, width : int
        Extents to divide: of the axis along which weights are reused, and of the vector axis.
    traits : CpuTraits
    data_type : str
    most_unrolled : int
        Most vector operations in one step.

    Returns
    -------
    rows, elements : int
    """
    best, choice = 0.0, (1, 1)
    lanes = traits.lanes(data_type)
    for elements in divisors(width):
        for rows in divisors(pixels):
            rate = tile_rate(rows, elements, lanes, traits)
            if rate > best and rows * (elements // gcd(elements, lanes)) <= most_unrolled:
                best, choice = rate, (rows, elements)
    return choice


def grouped_tile(
    rows: int, width: int, traits: CpuTraits, data_type: str, groups: int = 1
) -> tuple[int, int, float]:
    """The register tile of a result, and its speed among tiles that come in so many groups."""
    if rows % groups:
        return *register_tile(rows, width, traits, data_type), _UNGROUPED
    return *register_tile(rows // groups, width, traits, data_type), 1.0


@lru_cache(maxsize=1024)
def padded_rows(rows: int, width: int, traits: CpuTraits, data_type: str, groups: int = 1) -> int:
    """The rows of a matrix product, padded so that they divide into good register tiles.

    On AVX2, with sixteen registers, no tile of 49 rows keeps both multipliers busy. 50 rows have
    tiles of five rows by two vectors: 36 products of 128 by 128 took 0.39 instead of 0.53 ms (a Zen
    3).

    Parameters
    ----------
    rows, width : int
        Extents of the result.
    traits : CpuTraits
    data_type : str
    groups : int
        Groups of tiles that are wanted.

    Returns
    -------
    rows : int
        The given number unless padding is expected to pay; a 24th more at most.
    """
    lanes = traits.lanes(data_type)

    def rate(count: int) -> float:
        in_tile, elements, part = grouped_tile(count, width, traits, data_type, groups)
        return part * tile_rate(in_tile, elements, lanes, traits) * rows / count

    best = max(range(rows, rows + rows // _MOST_ADDED + 1), key=rate)
    return best if rate(best) > _LEAST_RATE_GAIN * rate(rows) else rows


def tile_rate(rows: int, elements: int, lanes: int, traits: CpuTraits) -> float:
    """Multiply-adds per cycle of a register tile, by rule.

    Parameters
    ----------
    rows, elements : int
        Rows that share a vector of weights, and the vector's elements.
    lanes : int
    traits : CpuTraits

    Returns
    -------
    rate : float
        0 for a tile that spills registers, or whose vectors LLVM splits.
    """
    # Only vectors of a power of two stay in registers: LLVM splits others through memory.
    piece = gcd(elements, lanes)
    vectors = elements // piece
    accumulators = rows * vectors
    if piece < max(2, lanes // 4) or vectors > 8 or not traits.holds(rows, vectors):
        return 0.0
    # Two operations on half registers issue in one cycle.
    cycles_each = 1.0 if piece == lanes else 0.5
    # A step issues a fused multiply-add for each accumulator, and loads each operand once. It is
    # never shorter than the latency of the addition.
    cycles = max(accumulators * cycles_each, (rows + vectors) * cycles_each, 4.0)
    return rows * elements / cycles * (1 + rows * elements / 1e4)


def vectorize_inner(sch: Schedule, loop: Any, width: int, lanes: int) -> None:
    """Vectorise a loop; if it fills several registers, it becomes an unrolled loop over vectors."""
    piece = gcd(width, lanes)
    if piece < max(2, lanes // 4):
        return
    if width > piece:
        vectors, loop = sch.split(loop, [width // piece, piece])
        sch.unroll(vectors)
    sch.vectorize(loop)


def split_off(sch: Schedule, loop: Any, extent: int, inner: int) -> tuple[Any, Any]:
    """Split a loop in two; the inner one has ``inner`` iterations, a divisor of ``extent``."""
    outer, remainder = sch.split(loop, [extent // inner, inner])
    return outer, remainder


def parallel_outer(sch: Schedule, loops: Loops, traits: CpuTraits, keep: int = 0) -> Any:
    """Fuse outer loops into one and run it in parallel.

    Parameters
    ----------
    loops : list of (loop, extent)
        Outermost first, directly nested.
    keep : int
        Most of the last loops that stay serial, if the others have enough iterations. Each fused
        loop costs a division in every iteration.

    Returns
    -------
    loop : tvm.s_tir.schedule.LoopRV
        The innermost of the given loops; the fused loop if all are fused.
    """
    enough = 8 * traits.threads
    while keep > 0 and prod(extent for _, extent in loops[: len(loops) - keep]) < enough:
        keep -= 1
    fused = [loop for loop, _ in loops[: len(loops) - keep]]
    outer = sch.fuse(*fused) if len(fused) > 1 else fused[0]
    sch.parallel(outer)
    return loops[-1][0] if keep else outer


def vectorize_last(
    sch: Schedule, handle: Any, traits: CpuTraits, dtype: str, most_vectors: int = 4
) -> None:
    """Vectorise the innermost loop of a block that is already computed at another block's loop."""
    loops = sch.get_loops(handle)
    if not loops:
        return
    loop, lanes = loops[-1], traits.lanes(dtype)
    extent = int(sch.get(loop).extent)
    width = vector_width(extent, lanes, most_vectors)
    with suppress(ScheduleError):
        if 1 < width < extent:
            _, loop = split_off(sch, loop, extent, width)
        vectorize_inner(sch, loop, width, lanes)


def contiguous_axis(block: Block) -> int | None:
    """The spatial axis along which the output's address grows by one."""
    write = block.writes[0]
    if write is None:
        return None
    return next((axis for axis in reversed(block.long_axes) if write[axis].stride == 1), None)

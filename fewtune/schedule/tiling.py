"""Tile sizes, and the loop surgery that all default schedules share."""

from __future__ import annotations

from functools import lru_cache
from math import gcd, prod
from typing import Any

from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.tvm import tvm
from fewtune.schedule.blocks import Block, ScheduleError

# Below this much work on one core, starting the threads (about 5 us) eats the gain.
LEAST_PARALLEL_US = 10.0
# Rows may be padded by one part in so many, if the rule expects at least this gain.
_MOST_ADDED, _LEAST_RATE_GAIN = 24, 1.09


def divisors(number: int) -> list[int]:
    """The divisors of a positive number, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def vector_width(extent: int, lanes: int, most_vectors: int) -> int:
    """The divisor of ``extent`` to vectorise, 1 where none is good.

    Only whole registers, or powers of two below one, are good: a vector of 63 fp32 runs ten times
    slower than the plain loop, which LLVM vectorises by itself and closes with a scalar rest.
    """
    whole = [count * lanes for count in range(most_vectors, 0, -1) if extent % (count * lanes) == 0]
    if whole:
        return whole[0]
    part = gcd(extent, lanes)
    if part < max(2, lanes // 4):
        return 1
    return max(part * count for count in range(1, most_vectors + 1) if extent % (part * count) == 0)


def plain_width(extent: int) -> int:
    """The length of an innermost loop that is left to LLVM to vectorise."""
    return max(d for d in divisors(extent) if d <= 1024)


def register_tile(
    pixels: int, width: int, traits: CpuTraits, data_type: str, most_unrolled: int = 1 << 30
) -> tuple[int, int]:
    """The register tile of a contraction: rows that share a weight vector, and its elements.

    Parameters
    ----------
    pixels, width : int
        Extents to be divided: of the axis along which weights are reused, of the vector axis.
    traits : CpuTraits
    data_type : str
    most_unrolled : int
        Bound on the vector operations in one step.

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


@lru_cache(maxsize=1024)
def filled_rows(rows: int, width: int, traits: CpuTraits, data_type: str) -> int:
    """As many rows of a matrix product as make up whole register tiles, or the rows given.

    49 rows have no tile that keeps both multipliers of AVX2's sixteen registers busy, 50 have five
    rows of two vectors: 36 products of 128 by 128 took 0.39 instead of 0.53 ms (a Zen 3).

    Parameters
    ----------
    rows, width : int
        Extents of the result.
    traits : CpuTraits
    data_type : str

    Returns
    -------
    rows : int
        More than were given only where that is expected to pay, some hundredths at most.
    """
    lanes = traits.lanes(data_type)

    def rate(count: int) -> float:
        tile = register_tile(count, width, traits, data_type)
        return tile_rate(*tile, lanes, traits) * rows / count

    best = max(range(rows, rows + rows // _MOST_ADDED + 1), key=rate)
    return best if rate(best) > _LEAST_RATE_GAIN * rate(rows) else rows


def tile_rate(rows: int, elements: int, lanes: int, traits: CpuTraits) -> float:
    """Multiply-adds a cycle of a register tile, by rule; 0 for one that spills or splits vectors.

    Parameters
    ----------
    rows, elements : int
        Rows that share a vector of weights, and the vector's elements.
    lanes : int
    traits : CpuTraits
    """
    # Only vectors of a power of two stay in registers: LLVM splits others through memory.
    piece = gcd(elements, lanes)
    vectors = elements // piece
    accumulators = rows * vectors
    if piece < max(2, lanes // 4) or vectors > 8 or not traits.holds(rows, vectors):
        return 0.0
    # Half registers issue two a cycle.
    cycles_each = 1.0 if piece == lanes else 0.5
    # A step issues a fused multiply-add for each accumulator, loads each operand once, and cannot
    # be shorter than the add's latency.
    cycles = max(accumulators * cycles_each, (rows + vectors) * cycles_each, 4.0)
    return rows * elements / cycles * (1 + rows * elements / 1e4)


def vectorize_inner(
    sch: tvm.s_tir.Schedule, loop: Any, width: int, lanes: int, *, unroll: bool = True
) -> list[Any]:
    """Vectorise a loop; several registers' worth becomes an unrolled loop over vectors.

    Returns
    -------
    loops : list[tvm.s_tir.schedule.LoopRV]
        What stands in place of ``loop``, outermost first.
    """
    piece = gcd(width, lanes)
    if piece < max(2, lanes // 4):
        return [loop]
    if width > piece:
        vectors, vector = sch.split(loop, [width // piece, piece])
        if unroll:
            sch.unroll(vectors)
        sch.vectorize(vector)
        return [vectors, vector]
    sch.vectorize(loop)
    return [loop]


def split_off(sch: tvm.s_tir.Schedule, loop: Any, extent: int, inner: int) -> tuple[Any, Any]:
    """Split a loop exactly; the inner one has ``inner`` iterations and the outer may have one."""
    outer, remainder = sch.split(loop, [extent // inner, inner])
    return outer, remainder


def parallel_outer(
    sch: tvm.s_tir.Schedule, loops: list[tuple[Any, int]], traits: CpuTraits, keep: int = 0
) -> Any:
    """Fuse outer loops into one and run it in parallel.

    Parameters
    ----------
    loops : list of (loop, extent)
        Outermost first, directly nested.
    keep : int
        How many of the last may stay serial where the others are iterations enough: undoing the
        fusion costs a division in every iteration.

    Returns
    -------
    loop : tvm.s_tir.schedule.LoopRV
        The innermost of the loops given, as it is now.
    """
    enough = 8 * traits.threads
    while keep > 0 and prod(extent for _, extent in loops[: len(loops) - keep]) < enough:
        keep -= 1
    fused = [loop for loop, _ in loops[: len(loops) - keep]]
    outer = sch.fuse(*fused) if len(fused) > 1 else fused[0]
    sch.parallel(outer)
    return loops[-1][0] if keep else outer


def vectorize_last(sch: tvm.s_tir.Schedule, handle: Any, traits: CpuTraits, dtype: str) -> None:
    """Vectorise the innermost loop of a block that something else has already placed."""
    loops = sch.get_loops(handle)
    if not loops:
        return
    loop = loops[-1]
    extent = int(sch.get(loop).extent)
    lanes = traits.lanes(dtype)
    width = vector_width(extent, lanes, 4)
    if width < 2:
        return
    try:
        if width < extent:
            _, loop = split_off(sch, loop, extent, width)
        vectorize_inner(sch, loop, width, lanes)
    except ScheduleError:
        return


def contiguous_axis(block: Block) -> int | None:
    """The spatial axis along which the output's address grows by one."""
    write = block.writes[0]
    if write is None:
        return None
    for axis in reversed(range(len(block.kinds))):
        if block.kinds[axis] == "S" and block.extents[axis] > 1 and write[axis].stride == 1:
            return axis
    return None

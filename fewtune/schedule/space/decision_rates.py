"""The expected speed of a decision relative to others of its kind; draws are weighted by it.

The speeds come from a regression of the logarithm of throughput on these decisions, with an effect
for each task, over 8,548 trials of 137 contractions: full tuning of eight models of the zoo on two
cores of an AMD EPYC with AVX-512. The constants are its effects, rounded. They set the order of the
draws, and rule out nothing that fits. The constants of streamed weights come from 1,120 trials of
11 tasks on two cores of an Intel Xeon, full tuning of ResNet 50 and SqueezeNet, and from the best
schedules among them. Most other effects were about the same there.
"""

from __future__ import annotations

from functools import cache, lru_cache
from math import gcd, log2

import numpy as np

from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.schedule.space.design_space import (
    AHEAD,
    INLINED,
    OUTSIDE,
    Choice,
    Decision,
    Program,
    factorisations,
)
from fewtune.schedule.space.weighted_draw import Chances
from fewtune.schedule.tiling import divisors, tile_rate

# Relative throughput of tiles with one row, two rows, very many rows, with vectors of half a
# register, with accumulators too few for the latency, or nearly too many for the registers.
_ONE_ROW, _TWO_ROWS, _MANY_ROWS = 0.7, 0.94, 0.86
_PART_VECTOR = 0.6
_FEW_ACCUMULATORS, _MANY_ACCUMULATORS = 0.75, 0.94
# Of tiles with a single vector and long sums: each multiply-add loads an element. Of tiles with
# several vectors and short sums: more of their time is writing back.
_SHORT_SUM, _LONG_SUM = 64, 256
_NARROW_IN_LONG_SUM, _WIDE_IN_SHORT_SUM = 0.97, 0.93
# Of a product with a single row: the vectors that are read side by side, and the speed with more.
_STREAMED_VECTORS, _MANY_STREAMED = 4, 0.6
# Of rows outside the inner reduction: their sums leave the registers.
_ROWS_OUTSIDE = 0.95
# Of results that are written back by the outermost tile, or only once all are done.
_WRITTEN_BY_THREAD, _WRITTEN_LAST = 0.97, 0.87
_NOT_UNROLLED, _UNROLLED_DEEP = 0.93, 0.85
# For each doubling of the inner reduction, and of the parts that the contiguous axis is split into
# among threads and in the cache.
_INNER_DOUBLED, _THREADS_DOUBLED, _CACHE_DOUBLED = 0.988, 0.97, 0.985
# Windows of kernels; a longer reduction runs over channels.
LONGEST_WINDOW = 11
_WINDOW_INSIDE = 0.3
_LONGEST_INNER_REDUCTION = 32
_DEEP = 128
# Of padding that is computed inside its reader, at an outer loop, before everything, or anywhere.
# From full runs of the seven models on the Xeon.
_PADDED = {INLINED: 1.0, OUTSIDE: 0.92, AHEAD: 0.84, None: 0.8}
# Of weights that are read from memory and serve few rows: with each doubling of the rows' parts
# among threads, which all read the same weights then; with each doubling away from the inner
# reduction that the best schedules had, about so many multiply-adds of vectors in a tile.
_SHARED_DOUBLED = 0.87
_STRETCH, _STRETCH_DOUBLED = 1024, 0.95


_ROWS = Chances.of([True, False], [_ROWS_OUTSIDE, 1.0])
_PADDING = Chances.of(_PADDED, _PADDED.values())


def rows_are_outside(random: np.random.Generator) -> bool:
    """Whether the rows of a tile are outside the inner reduction."""
    return _ROWS.draw(random)


def shared_speed(thread: int) -> float:
    """The expected speed if rows that share streamed weights are split among so many threads."""
    return float(_SHARED_DOUBLED ** log2(thread))


@lru_cache(maxsize=8192)
def even_cuts(extent: int) -> Chances[tuple[int, ...]]:
    """The ways to split an extent for threads and cache, all equally likely."""
    pairs = _pairs(extent)
    return Chances.of(pairs, [1.0] * len(pairs))


@lru_cache(maxsize=8192)
def outer_cuts(extent: int) -> Chances[tuple[int, ...]]:
    """The ways to split the rest of the contiguous axis, around its inner tile."""
    pairs = _pairs(extent)
    speeds = [_THREADS_DOUBLED ** log2(t) * _CACHE_DOUBLED ** log2(c) for t, c in pairs]
    return Chances.of(pairs, speeds)


@lru_cache(maxsize=8192)
def whole_runs(extent: int) -> Chances[tuple[int, ...]]:
    """The same if each thread passes once over its part of the contiguous axis."""
    return Chances.of([(1, extent)], [1.0])


@lru_cache(maxsize=8192)
def shared_cuts(extent: int) -> Chances[tuple[int, ...]]:
    """The same for rows that share streamed weights."""
    pairs = _pairs(extent)
    return Chances.of(pairs, [shared_speed(thread) for thread, _ in pairs])


def _pairs(extent: int) -> tuple[tuple[int, ...], ...]:
    return factorisations(extent, 2, extent)


def padding_location(random: np.random.Generator) -> Decision | None:
    """Where data is padded; with None it is drawn while the schedule is made."""
    return _PADDING.draw(random)


def unroll_depth(choice: Choice, random: np.random.Generator, *, streamed: bool) -> Decision:
    """An unroll depth: bodies of hundreds of steps build ten times slower and rarely win.

    Parameters
    ----------
    choice : Choice
    random : Generator
    streamed : bool
        Whether weights are streamed: such bodies then win as often as others.
    """
    return _depths(tuple(choice.values), streamed).draw(random)


@cache
def _depths(values: tuple[int, ...], streamed: bool) -> Chances[int]:
    deep = 1.0 if streamed else _UNROLLED_DEEP
    speeds = [deep if value > _DEEP else _NOT_UNROLLED if value == 0 else 1.0 for value in values]
    return Chances.of(range(len(values)), speeds)


def reduction_tile(
    choice: Choice, random: np.random.Generator, multiply_adds: float | None
) -> Decision:
    """A tile of a reduction: windows whole, a few channels at a time.

    Parameters
    ----------
    choice : Choice
    random : Generator
    multiply_adds : float or None
        Of vectors in one step of the reduction, if weights are streamed.
    """
    if choice.extent <= LONGEST_WINDOW:
        return (1, choice.extent) if random.random() < _WINDOW_INSIDE else (choice.extent, 1)
    limit = min(choice.innermost, _LONGEST_INNER_REDUCTION)
    last = _inner_reductions(choice.extent, limit, multiply_adds).draw(random)
    return (choice.extent // last, last)


@lru_cache(maxsize=8192)
def _inner_reductions(extent: int, limit: int, multiply_adds: float | None) -> Chances[int]:
    factors = [d for d in divisors(extent) if d <= limit]
    if multiply_adds is None:
        return Chances.of(factors, [_INNER_DOUBLED ** log2(factor) for factor in factors])
    best = max(1.0, min(float(limit), _STRETCH / multiply_adds))
    return Chances.of(factors, [_STRETCH_DOUBLED ** abs(log2(f / best)) for f in factors])


def written_speed(program: Program) -> float:
    """The expected speed of a program by the tile after which results are written back."""
    return {-1: _WRITTEN_LAST, 0: _WRITTEN_BY_THREAD}.get(program.written, 1.0)


def streamed_speed(elements: int, lanes: int) -> float:
    """The expected speed of a tile in which no row shares a vector: memory bounds it."""
    if elements % lanes:
        return _PART_VECTOR
    return 1.0 if elements <= _STREAMED_VECTORS * lanes else _MANY_STREAMED


def tile_speed(rows: int, elements: int, lanes: int, reduction: int, traits: CpuTraits) -> float:
    """The expected part of the best throughput; 0 for a tile that spills or splits vectors.

    Parameters
    ----------
    rows, elements : int
        Rows that share a vector, and elements along it.
    lanes : int
    reduction : int
        Terms of each sum.
    traits : CpuTraits
    """
    if tile_rate(rows, elements, lanes, traits) == 0.0:
        return 0.0
    piece = gcd(elements, lanes)
    vectors = elements // piece
    accumulators = rows * vectors
    speed = 1.0 if piece == lanes else _PART_VECTOR
    speed *= {1: _ONE_ROW, 2: _TWO_ROWS}.get(rows, _MANY_ROWS if rows > 16 else 1.0)
    if reduction <= _SHORT_SUM and vectors > 1 and rows > 2:
        speed *= _WIDE_IN_SHORT_SUM
    elif reduction > _LONG_SUM and vectors == 1:
        speed *= _NARROW_IN_LONG_SUM
    if accumulators < traits.in_flight:
        return speed * _FEW_ACCUMULATORS
    return speed * (_MANY_ACCUMULATORS if accumulators > 16 else 1.0)

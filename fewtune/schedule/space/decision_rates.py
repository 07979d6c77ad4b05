"""Expected speeds of decisions, relative to others of their kind; draws are weighted by them.

The speeds come from a regression of the logarithm of throughput on these decisions, with an effect
for each task. Its data are 8,548 trials of 137 contractions: full tuning of eight models of the zoo
on two cores of an AMD EPYC with AVX-512. The constants are the effects, rounded. They make slow
decisions rare, and exclude none that fits.

The constants of streamed weights come from 1,120 trials of 11 tasks on two cores of an Intel Xeon,
full tuning of ResNet 50 and SqueezeNet, and from the best schedules among them. Most other effects
were about the same there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import accumulate
from math import gcd, log2
from typing import Generic, TypeVar

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
from fewtune.schedule.tiling import divisors, tile_rate

# The weight of an alternative is its expected speed to this power.
_POWER = 8

_Alternative = TypeVar("_Alternative")


@dataclass(frozen=True)
class WeightedDraw(Generic[_Alternative]):
    """Alternatives with weights.

    A search draws hundreds of points for each one that it measures, with a dozen decisions each.
    For so few alternatives, numpy's ``choice`` takes ten times as long.

    Attributes
    ----------
    alternatives : tuple
    bounds : tuple of float
        Running sums of the weights.
    """

    alternatives: tuple[_Alternative, ...]
    bounds: tuple[float, ...]

    @staticmethod
    def of(
        alternatives: Iterable[_Alternative], speeds: Iterable[float]
    ) -> WeightedDraw[_Alternative]:
        """Weight alternatives by their expected speeds.

        Parameters
        ----------
        alternatives : iterable
            At least one.
        speeds : iterable of float
            Relative to each other.
        """
        bounds = accumulate(float(speed) ** _POWER for speed in speeds)
        return WeightedDraw(tuple(alternatives), tuple(bounds))

    def draw(self, random: np.random.Generator) -> _Alternative:
        """Draw one alternative."""
        place = bisect_right(self.bounds, random.random() * self.bounds[-1])
        # The product may be rounded up to the last bound.
        return self.alternatives[min(place, len(self.alternatives) - 1)]


# Tiles with one row, two rows, more than 16 rows; with vectors of half a register; with too few
# accumulators for the latency, and with more than 16.
_ONE_ROW, _TWO_ROWS, _MANY_ROWS = 0.7, 0.94, 0.86
_PART_VECTOR = 0.6
_FEW_ACCUMULATORS, _MANY_ACCUMULATORS = 0.75, 0.94
# Tiles with one vector and long sums: each multiply-add loads an element. Tiles with several
# vectors and short sums: writing back takes more of their time.
_SHORT_SUM, _LONG_SUM = 64, 256
_NARROW_IN_LONG_SUM, _WIDE_IN_SHORT_SUM = 0.97, 0.93
# Products with one row: vectors of a tile, and the speed with more vectors.
_STREAMED_VECTORS, _MANY_STREAMED = 4, 0.6
# Rows outside the inner reduction: their sums leave the registers.
_ROWS_OUTSIDE = 0.95
# Results written back after the outermost tile, or at the end.
_WRITTEN_BY_THREAD, _WRITTEN_LAST = 0.97, 0.87
_NOT_UNROLLED, _UNROLLED_DEEP = 0.93, 0.85
# For each doubling of the inner reduction, and of the factors for threads and for the cache on the
# contiguous axis.
_INNER_DOUBLED, _THREADS_DOUBLED, _CACHE_DOUBLED = 0.988, 0.97, 0.985
# Longest window of a kernel; longer reductions run over channels.
LONGEST_WINDOW = 11
_WINDOW_INSIDE = 0.3
_LONGEST_INNER_REDUCTION = 32
_DEEP = 128
# Padding that is computed inside its reader, at an outer loop, first of all, or at a random loop.
# From full runs of the seven models on the Xeon.
_PADDED = {INLINED: 1.0, OUTSIDE: 0.92, AHEAD: 0.84, None: 0.8}
# Padding of words that is slow inside its reader (`fewtune.schedule.space.prior`): there the best
# of 11 convolutions' trials took 1.3 to 3.5 times the fastest (full tuning of three models in eight
# bits, an EPYC).
_PADDED_WORDS = {OUTSIDE: 1.0, AHEAD: 0.9}
# Streamed weights: read from memory, for few rows. For each doubling of the threads that the rows
# are split among: all of them read the same weights.
_SHARED_DOUBLED = 0.87
# Streamed weights: multiply-adds of vectors in the inner reduction of the best schedules, and the
# speed for each doubling away from that.
_BEST_MULTIPLY_ADDS, _MULTIPLY_ADDS_DOUBLED = 1024, 0.95


_ROWS = WeightedDraw.of([True, False], [_ROWS_OUTSIDE, 1.0])
_PADDING = WeightedDraw.of(_PADDED, _PADDED.values())
_WORD_PADDING = WeightedDraw.of(_PADDED_WORDS, _PADDED_WORDS.values())


def rows_are_outside(random: np.random.Generator) -> bool:
    """Draw whether the rows of a tile are outside the inner reduction."""
    return _ROWS.draw(random)


def shared_speed(thread: int) -> float:
    """The expected speed if rows with streamed weights are split among so many threads."""
    return float(_SHARED_DOUBLED ** log2(thread))


@lru_cache(maxsize=8192)
def even_splits(extent: int) -> WeightedDraw[tuple[int, ...]]:
    """Splits of an extent for threads and cache, all equally likely."""
    pairs = _pairs(extent)
    return WeightedDraw.of(pairs, [1.0] * len(pairs))


@lru_cache(maxsize=8192)
def outer_splits(extent: int) -> WeightedDraw[tuple[int, ...]]:
    """Splits of the contiguous axis for threads and cache, outside its inner tile."""
    pairs = _pairs(extent)
    speeds = [_THREADS_DOUBLED ** log2(t) * _CACHE_DOUBLED ** log2(c) for t, c in pairs]
    return WeightedDraw.of(pairs, speeds)


@lru_cache(maxsize=8192)
def single_pass(extent: int) -> WeightedDraw[tuple[int, ...]]:
    """The split by which each thread passes once over the contiguous axis."""
    return WeightedDraw.of([(1, extent)], [1.0])


@lru_cache(maxsize=8192)
def shared_splits(extent: int) -> WeightedDraw[tuple[int, ...]]:
    """Splits for threads and cache of rows with streamed weights."""
    pairs = _pairs(extent)
    return WeightedDraw.of(pairs, [shared_speed(thread) for thread, _ in pairs])


def _pairs(extent: int) -> tuple[tuple[int, ...], ...]:
    return factorisations(extent, 2, extent)


def padding_location(random: np.random.Generator, *, of_words: bool) -> Decision | None:
    """Draw the location of padding; None if it is drawn while the schedule is made."""
    return (_WORD_PADDING if of_words else _PADDING).draw(random)


def unroll_depth(choice: Choice, random: np.random.Generator, *, streamed: bool) -> Decision:
    """Draw an unroll depth.

    Bodies of hundreds of steps take ten times as long to build, and are rarely the fastest.

    Parameters
    ----------
    choice : Choice
    random : Generator
    streamed : bool
        Whether weights are streamed: long bodies are then the fastest as often as others.
    """
    return _depths(tuple(choice.values), streamed).draw(random)


@cache
def _depths(values: tuple[int, ...], streamed: bool) -> WeightedDraw[int]:
    deep = 1.0 if streamed else _UNROLLED_DEEP
    speeds = [deep if value > _DEEP else _NOT_UNROLLED if value == 0 else 1.0 for value in values]
    return WeightedDraw.of(range(len(values)), speeds)


def reduction_tile(
    choice: Choice, random: np.random.Generator, multiply_adds: float | None
) -> Decision:
    """Draw a tile of a reduction: whole windows, or a few channels.

    Parameters
    ----------
    choice : Choice
    random : Generator
    multiply_adds : float or None
        Multiply-adds of vectors in one step of the reduction, if weights are streamed.
    """
    if choice.extent <= LONGEST_WINDOW:
        return (1, choice.extent) if random.random() < _WINDOW_INSIDE else (choice.extent, 1)
    limit = min(choice.innermost, _LONGEST_INNER_REDUCTION)
    last = _inner_reductions(choice.extent, limit, multiply_adds).draw(random)
    return (choice.extent // last, last)


@lru_cache(maxsize=8192)
def _inner_reductions(extent: int, limit: int, multiply_adds: float | None) -> WeightedDraw[int]:
    factors = [d for d in divisors(extent) if d <= limit]
    if multiply_adds is None:
        return WeightedDraw.of(factors, [_INNER_DOUBLED ** log2(factor) for factor in factors])
    best = max(1.0, min(float(limit), _BEST_MULTIPLY_ADDS / multiply_adds))
    speeds = [_MULTIPLY_ADDS_DOUBLED ** abs(log2(factor / best)) for factor in factors]
    return WeightedDraw.of(factors, speeds)


def written_speed(program: Program) -> float:
    """The expected speed of a program, from the tile after which it writes back results."""
    return {-1: _WRITTEN_LAST, 0: _WRITTEN_BY_THREAD}.get(program.written, 1.0)


def streamed_speed(elements: int, lanes: int) -> float:
    """The expected speed of a tile in which no rows share a vector: it is memory-bound."""
    if elements % lanes:
        return _PART_VECTOR
    return 1.0 if elements <= _STREAMED_VECTORS * lanes else _MANY_STREAMED


def tile_speed(rows: int, elements: int, lanes: int, reduction: int, traits: CpuTraits) -> float:
    """The expected throughput of a tile, relative to the best.

    Parameters
    ----------
    rows, elements : int
        Rows that share a vector, and elements along it.
    lanes : int
    reduction : int
        Terms of each sum.
    traits : CpuTraits

    Returns
    -------
    speed : float
        0 for a tile that spills registers, or whose vectors LLVM splits.
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

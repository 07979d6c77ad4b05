"""Draws points whose register tiles are good by rule: where a search on a CPU begins.

Nearly all factorisations of a tile leave registers empty, or spill them. A search that starts from
random points spends its first dozens of trials on learning that. Here a register tile of a
contraction fits the registers (`fewtune.schedule.tiling`): it has enough accumulators to hide the
latency of a multiply-add, few enough to stay in registers, and whole vectors along the contiguous
axis. Every decision is drawn at random, weighted by its expected speed relative to others of its
kind.

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
from functools import cache, cached_property, lru_cache
from itertools import accumulate
from math import gcd, log2, prod
from typing import Any, Generic, TypeVar

from numpy.random import Generator

from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.dot_products import any_dot
from fewtune.runtime.tvm import tvm
from fewtune.schedule.blocks import Block, ScheduleError, blocks_of, condition_axes, describe
from fewtune.schedule.space.design_space import (
    AHEAD,
    CATEGORICAL,
    INLINED,
    LOCATION,
    OUTSIDE,
    REDUCTION_LEVELS,
    SPATIAL_LEVELS,
    TILE,
    Choice,
    Decision,
    Point,
    Program,
    factorisations,
)
from fewtune.schedule.space.search_space import SearchSpace, random_decision
from fewtune.schedule.tiling import contiguous_axis, divisors, tile_rate
from fewtune.task.analysis import FLOAT32_BYTES

# The weight of an alternative is its expected speed to this power.
_POWER = 8

_Alternative = TypeVar("_Alternative")
Decisions = list[Decision | None]


class WeightedDraw(Generic[_Alternative]):
    """Alternatives, drawn by their expected speeds relative to each other.

    A search draws hundreds of points for each one that it measures, with a dozen decisions each.
    For so few alternatives, numpy's ``choice`` takes ten times as long.
    """

    def __init__(self, alternatives: Iterable[_Alternative], speeds: Iterable[float]) -> None:
        self._alternatives = tuple(alternatives)
        # Running sums of the weights.
        self._bounds = [*accumulate(float(speed) ** _POWER for speed in speeds)]

    def draw(self, random: Generator) -> _Alternative:
        """Draw one alternative."""
        place = bisect_right(self._bounds, random.random() * self._bounds[-1])
        # The product may be rounded up to the last bound.
        return self._alternatives[min(place, len(self._alternatives) - 1)]


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
# By the tile after which results are written back: the outermost, or all.
_WRITTEN = {0: 0.97, -1: 0.87}
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
# Padding that is slow inside its reader: of words (`pads_words`), where the best of 11
# convolutions' trials took 1.3 to 3.5 times the fastest (full tuning of three models in eight bits,
# an EPYC); of results of at most one vector, where each multiply-add has a condition of its own.
_PADDED_APART: dict[int | None, float] = {OUTSIDE: 1.0, AHEAD: 0.9}
# Streamed weights: read from memory, for few rows. For each doubling of the threads that the rows
# are split among: all of them read the same weights.
_SHARED_DOUBLED = 0.87
# Streamed weights: multiply-adds of vectors in the inner reduction of the best schedules, and the
# speed for each doubling away from that.
_BEST_MULTIPLY_ADDS, _MULTIPLY_ADDS_DOUBLED = 1024, 0.95


# Whether the rows of a tile are outside the inner reduction.
ROWS_OUTSIDE = WeightedDraw([True, False], [_ROWS_OUTSIDE, 1.0])
# Where padding is computed; None is drawn while the schedule is made.
PADDING = WeightedDraw(_PADDED, _PADDED.values())
PADDING_APART = WeightedDraw(_PADDED_APART, _PADDED_APART.values())


@lru_cache(maxsize=8192)
def splits(extent: int, thread: float = 1.0, cache: float = 1.0) -> WeightedDraw[tuple[int, ...]]:
    """Splits of an extent for threads and cache, and the speed for each doubling of these.

    If ``thread`` is zero, each thread passes once over the axis.
    """
    pairs = factorisations(extent, 2, extent)
    return WeightedDraw(pairs, [thread ** log2(t) * cache ** log2(c) for t, c in pairs])


@cache
def unroll_depths(values: tuple[int, ...], streamed: bool) -> WeightedDraw[int]:
    """The places of unroll depths.

    Bodies of hundreds of steps take ten times as long to build, and are rarely the fastest; if
    weights are streamed, they are as often as others.
    """
    deep = 1.0 if streamed else _UNROLLED_DEEP
    speeds = [deep if value > _DEEP else _NOT_UNROLLED if value == 0 else 1.0 for value in values]
    return WeightedDraw(range(len(values)), speeds)


def reduction_tile(choice: Choice, random: Generator, multiply_adds: float | None) -> Decision:
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
        return WeightedDraw(factors, [_INNER_DOUBLED ** log2(factor) for factor in factors])
    best = max(1.0, min(float(limit), _BEST_MULTIPLY_ADDS / multiply_adds))
    speeds = [_MULTIPLY_ADDS_DOUBLED ** abs(log2(factor / best)) for factor in factors]
    return WeightedDraw(factors, speeds)


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


# Tiles of at least this part of the best speed are drawn: the rule is a model, not a measurement.
_LEAST_SPEED = 0.6
# Weights are streamed if they have at least so many bytes, and at most so many rows use them.
_STREAMED_BYTES, _FEW_ROWS = 2**19, 64
# Results of so many bytes are in no core's cache when a kernel begins to write them.
_LARGE_BYTES = 2**20
# Speed gained by reading streamed weights only once. From the best schedules of full runs of ResNet
# 50 and SqueezeNet on an Intel Xeon.
_READ_ONCE = 1.15
# These fill half of a cache of 32 kB.
_MOST_PARTIAL_SUMS = 2**12


@dataclass(frozen=True)
class RegisterTile:
    """The loops inside the outer loops of a reduction, and their expected speed.

    Attributes
    ----------
    inner : dict of int
        Iterations by spatial axis, without axes of one iteration.
    speed : float
    held : dict of int, optional
        The iterations of ``inner`` whose results are in registers at a time, if not all are.
    """

    inner: dict[int, int]
    speed: float
    held: dict[int, int] | None = None


def register_tiles(
    block: Block, vector: int, traits: CpuTraits, streamed: frozenset[int]
) -> list[RegisterTile]:
    """Register tiles by rule, best first: rows along one or two axes, times whole vectors.

    Parameters
    ----------
    block : Block
    vector : int
        The axis along which its results are contiguous.
    traits : CpuTraits
    streamed : frozenset of int
        `streamed_rows` of the block.
    """
    lanes = traits.lanes(block.data_type)
    if any(walk[vector].stride not in (0, 1) for walk in block.known_reads):
        return []
    # Rows share the vectors that they multiply: one read has stride 0 along their axis.
    rows_of = [
        axis
        for axis in block.long_axes
        if axis != vector and any(walk[axis].stride == 0 for walk in block.known_reads)
    ]
    tiles: list[RegisterTile] = []
    for elements in divisors(block.extents[vector]):
        if elements > 8 * lanes:
            break
        for rows in _row_tiles(rows_of, block.extents, traits.registers):
            count = prod(rows.values())
            speed = tile_speed(count, elements, lanes, block.reduction_extent, traits)
            if not rows_of and speed > 0:
                speed = streamed_speed(elements, lanes)
            if speed > 0:
                tiles.append(RegisterTile({vector: elements, **rows}, speed))
    tiles += _covering(tiles, {axis: block.extents[axis] for axis in streamed}, vector)
    best = max((tile.speed for tile in tiles), default=0.0)
    good = [tile for tile in tiles if tile.speed >= _LEAST_SPEED * best]
    return sorted(good, key=lambda tile: (-tile.speed, sorted((tile.held or tile.inner).items())))


def _covering(tiles: list[RegisterTile], rows: dict[int, int], vector: int) -> list[RegisterTile]:
    """Tiles with all rows that use streamed weights; registers hold the sums of some of them.

    Every weight is then read once, not once for each tile of rows. All partial sums have to fit
    into the nearest cache.
    """
    found = []
    for tile in tiles if rows else ():
        inner = {vector: tile.inner[vector], **rows}
        along_rows = tile.inner.keys() - {vector} <= rows.keys()
        if along_rows and inner != tile.inner and prod(inner.values()) <= _MOST_PARTIAL_SUMS:
            found.append(RegisterTile(inner, _READ_ONCE * tile.speed, tile.inner))
    return found


def streamed_rows(block: Block, vector: int) -> frozenset[int]:
    """The axes of rows that share streamed weights: along them, the weights have stride 0.

    Streamed weights are large, and few rows use them: reading them from memory takes as long as the
    arithmetic. Products after Winograd's transforms of small images have such weights, and so have
    1x1 convolutions on planes of 7x7.

    Parameters
    ----------
    block : Block
    vector : int
        The axis along which its results and its weights are contiguous.

    Returns
    -------
    axes : frozenset of int
        Empty if the weights stay in a cache, or many rows use them.
    """
    for walk, size in zip(block.reads, block.weights_bytes, strict=True):
        if walk is None or walk[vector].stride != 1 or size < _STREAMED_BYTES:
            continue
        rows = frozenset(axis for axis in block.long_axes if walk[axis].stride == 0)
        if prod(block.extents[axis] for axis in rows) <= _FEW_ROWS:
            return rows
    return frozenset()


def _row_tiles(axes: list[int], extents: list[int], most: int) -> list[dict[int, int]]:
    """Iterations by axis of tiles of at most ``most`` rows, along one or two axes."""
    found: list[dict[int, int]] = [{}]
    for place, axis in enumerate(axes):
        for rows in divisors(extents[axis]):
            if rows == 1 or rows > most:
                continue
            found.append({axis: rows})
            for other in axes[place + 1 :]:
                found.extend(
                    {axis: rows, other: more}
                    for more in divisors(extents[other])
                    if more > 1 and rows * more <= most
                )
    return found


# A register tile: for each spatial axis with more than one iteration, the axis, its iterations, and
# how many of them are innermost (0 if that does not matter).
Iterations = frozenset[tuple[int, int, int]]


@dataclass(frozen=True)
class RuledBlock:
    """A block, and the register tiles that fit it.

    Attributes
    ----------
    name : str
    block : Block
    vector : int
        The axis along which its results are contiguous.
    tiles : list of RegisterTile
        Best first.
    streamed : frozenset of int
        Axes of the rows that share streamed weights (`streamed_rows`).
    lanes : int
    threads : int
        Cores that share its loops.
    """

    name: str
    block: Block
    vector: int
    tiles: list[RegisterTile]
    streamed: frozenset[int]
    lanes: int
    threads: int

    @staticmethod
    def of(module: tvm.IRModule, name: str, traits: CpuTraits) -> RuledBlock | None:
        """The rules for the named block of a module; None if there are none."""
        schedule = tvm.s_tir.Schedule(module, debug_mask="none", error_render_level="none")
        try:
            block = describe(schedule, schedule.get_sblock(name))
        except (ScheduleError, ValueError):
            return None
        vector = contiguous_axis(block) if block is not None else None
        if block is None or vector is None:
            return None
        streamed = streamed_rows(block, vector)
        tiles = register_tiles(block, vector, traits, streamed)
        lanes, threads = traits.lanes("float32"), traits.threads
        return RuledBlock(name, block, vector, tiles, streamed, lanes, threads) if tiles else None

    @cached_property
    def in_one_pass(self) -> bool:
        """Whether its results are large, and should be written in their order in memory.

        A depthwise convolution computes each channel by itself. It can compute some channels at a
        time over the whole plane. That is faster only if the caches hold the plane; otherwise it
        waits longer for memory, since its cache lines are not adjacent. MobileNet V2 has three such
        blocks, with results of 1.2 to 1.8 MB. Full tuning made 96 to 128 trials of each. The six
        fastest compute all channels in one pass, in 0.050 to 0.064 ms. Those that sharing chose
        took 0.076 to 0.106 ms (an EPYC).
        """
        alone = all(walk is not None and walk[self.vector].stride == 1 for walk in self.block.reads)
        return alone and FLOAT32_BYTES * self.block.spatial_extent >= _LARGE_BYTES

    @cached_property
    def tile_draw(self) -> WeightedDraw[RegisterTile]:
        """Its tiles, weighted by their speeds."""
        return WeightedDraw(self.tiles, [tile.speed for tile in self.tiles])

    @cached_property
    def speeds(self) -> dict[Iterations, float]:
        """The expected speed of each tile, by its key."""
        return {self._key(tile.inner, tile.held or tile.inner): tile.speed for tile in self.tiles}

    def is_spatial(self, choice: Choice) -> bool:
        """Whether a choice splits one of its spatial axes."""
        return choice.block == self.name and self.block.kinds[choice.axis] == "S"

    def spatial_places(self, program: Program) -> list[int]:
        """The places of the choices that split its spatial axes."""
        return [place for place, choice in enumerate(program.choices) if self.is_spatial(choice)]

    def iterations(self, program: Program, point: Point) -> Iterations:
        """Its register tile at a point."""
        inner, last = {}, {}
        for place in self.spatial_places(program):
            axis, tile = program.choices[place].axis, point.decisions[place]
            if isinstance(tile, tuple) and len(tile) == SPATIAL_LEVELS:
                inner[axis], last[axis] = tile[-2] * tile[-1], tile[-1]
        return self._key(inner, last)

    def _key(self, inner: dict[int, int], last: dict[int, int]) -> Iterations:
        """The key of a register tile: its iterations.

        If the tile has all rows that share streamed weights, the key has the innermost ones too.
        """
        shared, extents = self.streamed, self.block.extents
        covers = bool(shared) and all(inner.get(axis, 1) == extents[axis] for axis in shared)
        return frozenset(
            (axis, count, last.get(axis, 1) if covers and axis in shared else 0)
            for axis, count in inner.items()
            if count > 1
        )

    def split(
        self, choice: Choice, tile: RegisterTile, rows_outside: bool, random: Generator
    ) -> Decision | None:
        """Draw the split of an axis for a register tile.

        Parameters
        ----------
        choice : Choice
            A tile of one of its axes.
        tile : RegisterTile
        rows_outside : bool
            Whether the rows of the tile are outside the inner reduction.
        random : Generator
        """
        levels = len(choice.default) if isinstance(choice.default, tuple) else 0
        spatial = self.is_spatial(choice)
        if not spatial and levels == REDUCTION_LEVELS:
            elements = prod(tile.inner.values())
            return reduction_tile(choice, random, elements / self.lanes if self.streamed else None)
        # Spatial levels are thread, cache, rows and vector. A reduction is inside the cache level,
        # and another inside the rows.
        usual = spatial and levels == SPATIAL_LEVELS
        last = self.innermost(choice, tile, rows_outside) if usual else None
        if last is None:
            return random_decision(choice, random)
        inner = tile.inner.get(choice.axis, 1)
        speeds: tuple[float, ...] = ()
        if choice.axis in self.streamed:
            speeds = (_SHARED_DOUBLED,)
        elif choice.axis == self.vector and self.in_one_pass:
            speeds = (0.0,)
        elif choice.axis == self.vector and not self.streamed:
            speeds = (_THREADS_DOUBLED, _CACHE_DOUBLED)
        thread, cache = splits(choice.extent // inner, *speeds).draw(random)
        return (thread, cache, inner // last, last)

    def retiled(self, program: Program, decisions: Decisions, tile: RegisterTile) -> bool:
        """Change decisions to another register tile; the thread level changes least.

        Returns
        -------
        fits : bool
            False if an axis cannot have its factor. Other axes may have changed by then.
        """
        before = {place: decisions[place] for place in self.spatial_places(program)}
        rows = [
            now
            for place, now in before.items()
            if program.choices[place].axis != self.vector and isinstance(now, tuple)
        ]
        rows_outside = any(now[-2] > 1 for now in rows) and all(now[-1] == 1 for now in rows)
        for place, now in before.items():
            choice = program.choices[place]
            inner = tile.inner.get(choice.axis, 1)
            last = self.innermost(choice, tile, rows_outside)
            if last is None:
                return False
            if isinstance(now, tuple) and len(now) == SPATIAL_LEVELS:
                rest = choice.extent // inner
                thread = min(divisors(rest), key=lambda d: (abs(log2(d / now[0])), d))
                decisions[place] = (thread, rest // thread, inner // last, last)
        return True

    def innermost(self, choice: Choice, tile: RegisterTile, rows_outside: bool) -> int | None:
        """The innermost factor of an axis in a register tile; None if there is none."""
        inner = tile.inner.get(choice.axis, 1)
        if choice.axis != self.vector:
            if tile.held is not None:
                inner = tile.held.get(choice.axis, 1)
            elif rows_outside:
                inner = 1
            return inner if inner <= choice.innermost else 1
        # All vectors are innermost if possible. LLVM takes a minute for a vector of 40 in a long
        # unrolled body, so only powers of two are innermost.
        whole = gcd(inner, self.lanes)
        factors = [
            d
            for d in divisors(inner)
            if d % whole == 0 and d & (d - 1) == 0 and d <= choice.innermost
        ]
        return factors[-1] if factors else None

    def give_threads_work(self, program: Program, decisions: Decisions, random: Generator) -> None:
        """Give the outermost level enough iterations for all threads; changes ``decisions``."""
        places = self.spatial_places(program)
        tiles = {place: decisions[place] for place in places}
        outer = prod(tile[0] for tile in tiles.values() if isinstance(tile, tuple))
        if outer % self.threads == 0 or not tiles:
            return
        order = [places[int(i)] for i in random.permutation(len(places))]
        # Only as a last resort do threads share streamed weights, or split the axis that is written
        # in one pass.
        last = {*self.streamed, *([self.vector] if self.in_one_pass else [])}
        for place in sorted(order, key=lambda p: program.choices[p].axis in last):
            tile = tiles[place]
            if isinstance(tile, tuple) and len(tile) == SPATIAL_LEVELS and tile[1] > 1:
                # All of it if nothing less gives each thread as much.
                fitting = (d for d in divisors(tile[1]) if d % self.threads == 0)
                factor = next(fitting, tile[1])
                decisions[place] = (tile[0] * factor, tile[1] // factor, *tile[2:])
                return


def pads_words(module: tvm.IRModule) -> bool:
    """Whether a product of words reads padding that is slow to compute inside it.

    Such padding has a zero point that is read from memory, or fills up the channels. Inside the
    product, four bytes are then chosen one by one for each word, again for every filter.
    """
    schedule = tvm.s_tir.Schedule(module)
    return any(
        _is_slow_inside(schedule, handle)
        and any(any_dot(schedule.get(each).body) for each in schedule.get_consumers(handle))
        for handle in blocks_of(schedule)
    )


def _is_slow_inside(schedule: tvm.s_tir.Schedule, handle: Any) -> bool:
    block = schedule.get(handle)
    conditions = condition_axes(schedule, handle)
    return bool(conditions) and (len(block.reads) > 1 or len(block.iter_vars) - 1 in conditions)


# Register tiles of at least this part of the best expected speed are each worth a measurement.
_WORTH_TRYING = 0.85

# The register tile of each block that has a rule, by its name.
TileKey = tuple[tuple[str, Iterations], ...]


class Prior:
    """Draws points whose register tiles are good by rule.

    Parameters
    ----------
    space : SearchSpace

    Attributes
    ----------
    informed : bool
        Whether a rule applies to this task. Otherwise points are drawn at random.
    """

    def __init__(self, space: SearchSpace) -> None:
        self._space = space
        self._ruled: dict[str, RuledBlock] = {}
        self._padding = PADDING
        speeds = (_WRITTEN.get(program.written, 1.0) for program in space.programs)
        self._programs = WeightedDraw(space.programs, speeds)
        if "cpu" not in list(space.target.keys):
            return
        traits = CpuTraits.of(space.target)
        names = {c.block for p in space.programs for c in p.choices if c.kind == TILE and c.block}
        for name in sorted(names):
            if (ruled := RuledBlock.of(space.module, name, traits)) is not None:
                self._ruled[name] = ruled
        narrow = (most := self.contraction) and most.block.extents[most.vector] <= most.lanes
        if narrow or pads_words(space.module):
            self._padding = PADDING_APART

    @property
    def informed(self) -> bool:
        return bool(self._ruled)

    @property
    def contraction(self) -> RuledBlock | None:
        """The contraction with most of the work; None if no contraction has a rule."""
        ruled = self._ruled.values()
        return max(ruled, key=lambda each: (prod(each.block.extents), each.name), default=None)

    def draw(self, random: Generator) -> Point:
        """Draw a point of any program."""
        program = self._programs.draw(random)
        tiles = {name: ruled.tile_draw.draw(random) for name, ruled in self._ruled.items()}
        # One draw for all axes of a tile, since their levels are nested loops.
        rows_outside = ROWS_OUTSIDE.draw(random)
        streamed = any(ruled.streamed for ruled in self._ruled.values())

        def decided(choice: Choice) -> Decision | None:
            if choice.kind == LOCATION:
                return self._padding.draw(random)
            if choice.kind == CATEGORICAL:
                return unroll_depths(choice.values, streamed).draw(random)
            if choice.block not in self._ruled:
                return random_decision(choice, random)
            tile = tiles[choice.block]
            return self._ruled[choice.block].split(choice, tile, rows_outside, random)

        return self._with_work_for_threads(program, [*map(decided, program.choices)], random)

    def retiled(self, point: Point, random: Generator) -> Point:
        """A neighbour with another register tile; changing one decision does not reach it."""
        program = self._space.programs[point.program]
        decisions = list(point.decisions)
        for ruled in self._ruled.values():
            if not ruled.retiled(program, decisions, ruled.tile_draw.draw(random)):
                # A mixture of two tiles may spill registers.
                return point
        return self._with_work_for_threads(program, decisions, random)

    def tile_of(self, point: Point) -> TileKey:
        """The register tile of a point."""
        program = self._space.programs[point.program]
        return tuple((name, each.iterations(program, point)) for name, each in self._ruled.items())

    def expected_speed(self, tile: TileKey) -> float:
        """The expected speed of a register tile; 0 for one that is not worth trying."""
        promised = 1.0
        for name, iterations in tile:
            ruled = self._ruled[name]
            speed = ruled.speeds.get(iterations, 0.0)
            promised *= speed if speed >= _WORTH_TRYING * ruled.tiles[0].speed else 0.0
        return promised

    def _with_work_for_threads(
        self, program: Program, decisions: Decisions, random: Generator
    ) -> Point:
        """The point of these decisions, changed to have work for all threads."""
        for ruled in self._ruled.values():
            ruled.give_threads_work(program, decisions, random)
        return Point(program.number, tuple(decisions))

"""Points of a search space that fill the vector registers: where a search on a CPU begins.

Of the factorisations that a tile can have, nearly all leave registers empty or spill them, and a
search that starts from random ones spends its first dozens of trials to learn just that. Here the
register tile of a contraction is one that fits (`fewtune.schedule.tiling`): accumulators enough to
hide the latency of a multiply-add, few enough to stay in registers, whole vectors along the
contiguous axis. Every decision is drawn, the likelier the faster it is expected to be
(`fewtune.schedule.paces`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod

import numpy as np

from fewtune.schedule.blocks import Block, CpuTraits, ScheduleError, describe
from fewtune.schedule.paces import (
    likelihoods,
    outer_pace,
    reduction_tile,
    rows_are_outside,
    tile_pace,
    unroll_depth,
    written_pace,
)
from fewtune.schedule.search_space import (
    CATEGORICAL,
    TILE,
    Choice,
    Decision,
    Point,
    Program,
    SearchSpace,
    factorisations,
    random_decision,
)
from fewtune.schedule.tiling import contiguous_axis, divisors
from fewtune.tvm_runtime import tvm

_SPATIAL_LEVELS, _REDUCTION_LEVELS = 4, 2
# Tiles this much below the best are still drawn: the rule is a model, not a measurement.
_LEAST_PACE = 0.6


@dataclass(frozen=True)
class _Tile:
    """A register tile: how many iterations of each spatial axis, and its expected pace."""

    inner: dict[int, int]
    pace: float


class Prior:
    """Draws points whose register tiles are good by rule.

    Parameters
    ----------
    space : SearchSpace

    Attributes
    ----------
    informed : bool
        Whether there is a rule for this task; without one, points are drawn at random.
    """

    def __init__(self, space: SearchSpace) -> None:
        self._space = space
        self._tiles: dict[str, list[_Tile]] = {}
        self._blocks: dict[str, Block] = {}
        self._vector: dict[str, int] = {}
        self._threads = 1
        self._programs = likelihoods([written_pace(program) for program in space.programs])
        if "cpu" not in list(space.target.keys):
            return
        traits = CpuTraits.of(space.target)
        self._threads = traits.threads
        self._lanes = traits.lanes("float32")
        names = {c.block for p in space.programs for c in p.choices if c.kind == TILE and c.block}
        for name in sorted(names):
            block = _block(space.module, name)
            vector = contiguous_axis(block) if block is not None else None
            if block is None or vector is None:
                continue
            tiles = _register_tiles(block, vector, traits)
            if tiles:
                self._tiles[name], self._blocks[name] = tiles, block
                self._vector[name] = vector

    @property
    def informed(self) -> bool:
        return bool(self._tiles)

    def draw(self, random: np.random.Generator) -> Point:
        """One point, of any of the programs."""
        number = int(random.choice(len(self._programs), p=self._programs))
        program = self._space.programs[number]
        inner: dict[str, dict[int, int]] = {}
        for name, tiles in self._tiles.items():
            chances = likelihoods([tile.pace for tile in tiles])
            inner[name] = tiles[int(random.choice(len(tiles), p=chances))].inner
        # One choice of level for all axes of a tile: the levels are loops inside one another.
        rows_outside = rows_are_outside(random)
        decisions = [
            self._decide(choice, inner, rows_outside, random) for choice in program.choices
        ]
        return Point(program.number, self._shared(program, decisions, random))

    def _decide(
        self,
        choice: Choice,
        inner: dict[str, dict[int, int]],
        rows_outside: bool,
        random: np.random.Generator,
    ) -> Decision | None:
        block = self._blocks.get(choice.block)
        if choice.kind == CATEGORICAL:
            return unroll_depth(choice, random)
        if block is None or not isinstance(choice.given, tuple):
            return random_decision(choice, random)
        levels = len(choice.given)
        is_spatial = block.kinds[choice.axis] == "S"
        if is_spatial and levels == _SPATIAL_LEVELS:
            tile = inner[choice.block].get(choice.axis, 1)
            return self._spatial(choice, tile, rows_outside, random)
        if not is_spatial and levels == _REDUCTION_LEVELS:
            return reduction_tile(choice, random)
        return random_decision(choice, random)

    def _spatial(
        self, choice: Choice, tile: int, rows_outside: bool, random: np.random.Generator
    ) -> Decision | None:
        """Levels thread, cache, [reduction], rows, [reduction], vector."""
        pairs = factorisations(choice.extent // tile, 2, 2**31)
        paces = [1.0] * len(pairs)
        if choice.axis == self._vector[choice.block]:
            # Vectors stay inside, all of them if they can. LLVM takes a minute for a vector of 40
            # in a long unrolled body: only powers of two stand inside.
            whole = gcd(tile, self._lanes)
            factors = [
                d
                for d in divisors(tile)
                if d % whole == 0 and d & (d - 1) == 0 and d <= choice.innermost
            ]
            if not factors:
                return random_decision(choice, random)
            last = factors[-1]
            paces = [outer_pace(thread, cache) for thread, cache in pairs]
        else:
            last = 1 if rows_outside or tile > choice.innermost else tile
        thread, cache = pairs[int(random.choice(len(pairs), p=likelihoods(paces)))]
        return (thread, cache, tile // last, last)

    def _shared(
        self, program: Program, decisions: list[Decision | None], random: np.random.Generator
    ) -> tuple[Decision | None, ...]:
        """See that the outermost level is iterations enough for all threads."""
        for name, block in self._blocks.items():
            places = [
                place
                for place, choice in enumerate(program.choices)
                if choice.block == name and block.kinds[choice.axis] == "S"
            ]
            tiles = {place: decisions[place] for place in places}
            outer = prod(tile[0] for tile in tiles.values() if isinstance(tile, tuple))
            if outer % self._threads == 0 or not tiles:
                continue
            order = [places[int(i)] for i in random.permutation(len(places))]
            for place in order:
                tile = tiles[place]
                if isinstance(tile, tuple) and len(tile) == _SPATIAL_LEVELS and tile[1] > 1:
                    factor = _smallest_factor(tile[1], self._threads)
                    decisions[place] = (tile[0] * factor, tile[1] // factor, *tile[2:])
                    break
        return tuple(decisions)


def _smallest_factor(extent: int, threads: int) -> int:
    fitting = [d for d in divisors(extent) if d % threads == 0]
    return fitting[0] if fitting else extent


def _block(module: tvm.IRModule, name: str) -> Block | None:
    schedule = tvm.s_tir.Schedule(module, debug_mask="none", error_render_level="none")
    try:
        return describe(schedule, schedule.get_sblock(name))
    except (ScheduleError, ValueError):
        return None


def _register_tiles(block: Block, vector: int, traits: CpuTraits) -> list[_Tile]:
    """Register tiles by rule, best first: rows along one axis, or two, times whole vectors."""
    lanes = traits.lanes(block.data_type)
    if any(walk is not None and walk[vector].stride not in (0, 1) for walk in block.reads):
        return []
    others = [
        axis
        for axis, kind in enumerate(block.kinds)
        if kind == "S" and axis != vector and block.extents[axis] > 1
    ]
    # Rows share the vectors that they multiply: a read that stands still along their axis.
    rows_of = [
        axis
        for axis in others
        if any(walk is not None and walk[axis].stride == 0 for walk in block.reads)
    ]
    tiles: dict[tuple[tuple[int, int], ...], _Tile] = {}
    for elements in divisors(block.extents[vector]):
        if elements > 8 * lanes:
            break
        for rows in _row_tiles(rows_of, block.extents, traits.registers):
            pace = tile_pace(prod(rows.values()), elements, lanes, traits.registers)
            if pace > 0:
                inner = {vector: elements, **rows}
                tiles[tuple(sorted(inner.items()))] = _Tile(inner, pace)
    best = max((tile.pace for tile in tiles.values()), default=0.0)
    good = [tile for tile in tiles.values() if tile.pace >= _LEAST_PACE * best]
    return sorted(good, key=lambda tile: (-tile.pace, sorted(tile.inner.items())))


def _row_tiles(axes: list[int], extents: list[int], most: int) -> list[dict[int, int]]:
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

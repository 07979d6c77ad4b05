"""Points of a search space that fill the vector registers: where a search on a CPU begins.

Of the factorisations that a tile can have, nearly all leave registers empty or spill them, and a
search that starts from random ones spends its first dozens of trials to learn just that. Here the
register tile of a contraction is one that fits (`fewtune.schedule.tiling`): accumulators enough to
hide the latency of a multiply-add, few enough to stay in registers, whole vectors along the
contiguous axis. Every decision is drawn, the likelier the faster it is expected to be
(`fewtune.schedule.paces`).
"""

from __future__ import annotations

from functools import cached_property
from math import gcd, log2, prod
from typing import NamedTuple

import numpy as np

from fewtune.schedule.blocks import Block, CpuTraits, ScheduleError, describe
from fewtune.schedule.chances import Chances
from fewtune.schedule.paces import (
    even_cuts,
    outer_cuts,
    padding_location,
    reduction_tile,
    rows_are_outside,
    shared_cuts,
    unroll_depth,
    whole_runs,
    written_pace,
)
from fewtune.schedule.program import (
    CATEGORICAL,
    LOCATION,
    REDUCTION_LEVELS,
    SPATIAL_LEVELS,
    TILE,
    Choice,
    Decision,
    Point,
    Program,
)
from fewtune.schedule.register_tiles import (
    RegisterTile,
    is_written_in_one_pass,
    register_tiles,
    streamed_rows,
)
from fewtune.schedule.search_space import SearchSpace, random_decision
from fewtune.schedule.tiling import contiguous_axis, divisors
from fewtune.tvm_runtime import tvm

# Register tiles of at least this part of the best expected pace are worth a measurement each.
_WORTH_TRYING = 0.85

# Of a block: the spatial axes that have more than one iteration in its register tile, and how many
# of these stand innermost where that counts.
_Iterations = frozenset[tuple[int, int, int]]
# The same of each block that there is a rule for, by its name.
TileKey = tuple[tuple[str, _Iterations], ...]


class Contraction(NamedTuple):
    """A block that there is a rule for.

    Attributes
    ----------
    name : str
    block : Block
    vector : int
        The axis that its results are contiguous along.
    streamed : frozenset of int
        Axes along which its weights stand still, where these are large and serve few rows.
    lanes : int
    """

    name: str
    block: Block
    vector: int
    streamed: frozenset[int]
    lanes: int


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
        self._tiles: dict[str, list[RegisterTile]] = {}
        self._blocks: dict[str, Block] = {}
        self._vector: dict[str, int] = {}
        # Axes along which a block's weights stand still, where they are streamed.
        self._shared_along: dict[str, frozenset[int]] = {}
        # Blocks whose results are written as they lie in memory, not in several passes.
        self._in_one_pass: set[str] = set()
        self._threads = 1
        self._programs = Chances.of(space.programs, map(written_pace, space.programs))
        self._chances: dict[str, Chances[RegisterTile]] = {}
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
            streamed = streamed_rows(block, vector)
            tiles = register_tiles(block, vector, traits, streamed)
            if tiles:
                self._tiles[name], self._blocks[name] = tiles, block
                self._chances[name] = Chances.of(tiles, [tile.pace for tile in tiles])
                self._vector[name] = vector
                self._shared_along[name] = streamed
                if is_written_in_one_pass(block, vector):
                    self._in_one_pass.add(name)

    @property
    def informed(self) -> bool:
        return bool(self._tiles)

    @property
    def contraction(self) -> Contraction | None:
        """The contraction that most of the work is; None where there is no rule for one."""
        if not self._tiles:
            return None
        name = max(self._blocks, key=lambda each: (prod(self._blocks[each].extents), each))
        return Contraction(
            name,
            self._blocks[name],
            self._vector[name],
            self._shared_along[name],
            self._lanes,
        )

    def draw(self, random: np.random.Generator) -> Point:
        """One point, of any of the programs."""
        program = self._programs.draw(random)
        tiles = {name: chances.draw(random) for name, chances in self._chances.items()}
        # One choice of level for all axes of a tile: the levels are loops inside one another.
        rows_outside = rows_are_outside(random)
        decisions = [
            self._decide(choice, tiles, rows_outside, random) for choice in program.choices
        ]
        return Point(program.number, self._shared(program, decisions, random))

    def retiled(self, point: Point, random: np.random.Generator) -> Point:
        """A neighbour with another register tile: a step that no change of one decision takes."""
        program = self._space.programs[point.program]
        decisions = list(point.decisions)
        for name in self._tiles:
            tile = self._chances[name].draw(random)
            before = {place: decisions[place] for place in self._spatial_places(program, name)}
            rows = [
                now
                for place, now in before.items()
                if program.choices[place].axis != self._vector[name] and isinstance(now, tuple)
            ]
            rows_outside = any(now[-2] > 1 for now in rows) and all(now[-1] == 1 for now in rows)
            for place, now in before.items():
                choice = program.choices[place]
                inner = tile.inner.get(choice.axis, 1)
                last = self._innermost(choice, tile, rows_outside)
                if last is None:
                    # Half of a tile and half of another may spill.
                    return point
                if isinstance(now, tuple) and len(now) == SPATIAL_LEVELS:
                    thread, cache = _nearest(choice.extent // inner, now[0])
                    decisions[place] = (thread, cache, inner // last, last)
        return Point(point.program, self._shared(program, decisions, random))

    def tile_of(self, point: Point) -> TileKey:
        """The register tile of a point: points of one tile differ in what matters less."""
        program = self._space.programs[point.program]
        return tuple((name, self._iterations(program, name, point)) for name in self._tiles)

    def promise(self, tile: TileKey) -> float:
        """The expected pace of a register tile; 0 for one that is not worth trying."""
        promised = 1.0
        for name, iterations in tile:
            pace = self._paces[name].get(iterations, 0.0)
            promised *= pace if pace >= _WORTH_TRYING * self._tiles[name][0].pace else 0.0
        return promised

    @cached_property
    def _paces(self) -> dict[str, dict[_Iterations, float]]:
        return {
            name: {
                self._key(name, tile.inner, tile.held or tile.inner): tile.pace for tile in tiles
            }
            for name, tiles in self._tiles.items()
        }

    def _iterations(self, program: Program, name: str, point: Point) -> _Iterations:
        """The register tile of one block at a point."""
        inner, last = {}, {}
        for place in self._spatial_places(program, name):
            axis, tile = program.choices[place].axis, point.decisions[place]
            if isinstance(tile, tuple) and len(tile) == SPATIAL_LEVELS:
                inner[axis], last[axis] = tile[-2] * tile[-1], tile[-1]
        return self._key(name, inner, last)

    def _key(self, name: str, inner: dict[int, int], last: dict[int, int]) -> _Iterations:
        """What tells register tiles apart.

        Where all rows stand inside that share streamed weights, also what registers hold of them.
        """
        shared = self._shared_along[name]
        extents = self._blocks[name].extents
        covers = bool(shared) and all(inner.get(axis, 1) == extents[axis] for axis in shared)
        return frozenset(
            (axis, count, last.get(axis, 1) if covers and axis in shared else 0)
            for axis, count in inner.items()
            if count > 1
        )

    def _spatial_places(self, program: Program, name: str) -> list[int]:
        """The places of the choices that split a block's spatial axes."""
        kinds = self._blocks[name].kinds
        return [
            place
            for place, choice in enumerate(program.choices)
            if choice.block == name and kinds[choice.axis] == "S"
        ]

    def _decide(
        self,
        choice: Choice,
        tiles: dict[str, RegisterTile],
        rows_outside: bool,
        random: np.random.Generator,
    ) -> Decision | None:
        block = self._blocks.get(choice.block)
        if choice.kind == LOCATION:
            return padding_location(random)
        if choice.kind == CATEGORICAL:
            return unroll_depth(choice, random, streamed=any(self._shared_along.values()))
        if block is None or not isinstance(choice.given, tuple):
            return random_decision(choice, random)
        levels = len(choice.given)
        is_spatial = block.kinds[choice.axis] == "S"
        if is_spatial and levels == SPATIAL_LEVELS:
            return self._spatial(choice, tiles[choice.block], rows_outside, random)
        if not is_spatial and levels == REDUCTION_LEVELS:
            streamed = self._shared_along[choice.block]
            elements = prod(tiles[choice.block].inner.values())
            return reduction_tile(choice, random, elements / self._lanes if streamed else None)
        return random_decision(choice, random)

    def _spatial(
        self, choice: Choice, tile: RegisterTile, rows_outside: bool, random: np.random.Generator
    ) -> Decision | None:
        """Levels thread, cache, [reduction], rows, [reduction], vector."""
        last = self._innermost(choice, tile, rows_outside)
        if last is None:
            return random_decision(choice, random)
        inner = tile.inner.get(choice.axis, 1)
        shared = self._shared_along[choice.block]
        if choice.axis in shared:
            cuts = shared_cuts
        elif choice.axis == self._vector[choice.block] and choice.block in self._in_one_pass:
            cuts = whole_runs
        elif choice.axis == self._vector[choice.block] and not shared:
            cuts = outer_cuts
        else:
            cuts = even_cuts
        thread, cache = cuts(choice.extent // inner).draw(random)
        return (thread, cache, inner // last, last)

    def _innermost(self, choice: Choice, tile: RegisterTile, rows_outside: bool) -> int | None:
        """How much of an axis' register tile stands innermost; None where nothing can."""
        inner = tile.inner.get(choice.axis, 1)
        if choice.axis != self._vector[choice.block]:
            if tile.held is not None:
                inner = tile.held.get(choice.axis, 1)
            elif rows_outside:
                inner = 1
            return inner if inner <= choice.innermost else 1
        # Vectors stay inside, all of them if they can. LLVM takes a minute for a vector of 40 in a
        # long unrolled body: only powers of two stand inside.
        whole = gcd(inner, self._lanes)
        factors = [
            d
            for d in divisors(inner)
            if d % whole == 0 and d & (d - 1) == 0 and d <= choice.innermost
        ]
        return factors[-1] if factors else None

    def _shared(
        self, program: Program, decisions: list[Decision | None], random: np.random.Generator
    ) -> tuple[Decision | None, ...]:
        """See that the outermost level is iterations enough for all threads."""
        for name in self._blocks:
            places = self._spatial_places(program, name)
            tiles = {place: decisions[place] for place in places}
            outer = prod(tile[0] for tile in tiles.values() if isinstance(tile, tuple))
            if outer % self._threads == 0 or not tiles:
                continue
            order = [places[int(i)] for i in random.permutation(len(places))]
            # Threads that share streamed weights, or part what is to be written in one pass, are
            # the last resort.
            last = {*self._shared_along[name]}
            if name in self._in_one_pass:
                last.add(self._vector[name])
            for place in sorted(order, key=lambda p: program.choices[p].axis in last):
                tile = tiles[place]
                if isinstance(tile, tuple) and len(tile) == SPATIAL_LEVELS and tile[1] > 1:
                    factor = _smallest_factor(tile[1], self._threads)
                    decisions[place] = (tile[0] * factor, tile[1] // factor, *tile[2:])
                    break
        return tuple(decisions)


def _nearest(extent: int, thread: int) -> tuple[int, int]:
    """The cut of an extent among threads that is nearest to a given one."""
    factor = min(divisors(extent), key=lambda d: (abs(log2(d / thread)), d))
    return factor, extent // factor


def _smallest_factor(extent: int, threads: int) -> int:
    fitting = [d for d in divisors(extent) if d % threads == 0]
    return fitting[0] if fitting else extent


def _block(module: tvm.IRModule, name: str) -> Block | None:
    schedule = tvm.s_tir.Schedule(module, debug_mask="none", error_render_level="none")
    try:
        return describe(schedule, schedule.get_sblock(name))
    except (ScheduleError, ValueError):
        return None

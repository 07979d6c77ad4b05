"""Draws points whose register tiles are good by rule: where a search on a CPU begins.

Nearly all factorisations of a tile leave registers empty, or spill them. A search that starts from
random points spends its first dozens of trials on learning that. Here a register tile of a
contraction fits the registers (`fewtune.schedule.tiling`): it has enough accumulators to hide the
latency of a multiply-add, few enough to stay in registers, and whole vectors along the contiguous
axis. Every decision is drawn at random, weighted by its expected speed
(`fewtune.schedule.space.tile_rules`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm_ffi

from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.tvm import tvm
from fewtune.schedule.blocks import blocks_of, condition_axes
from fewtune.schedule.space.design_space import (
    CATEGORICAL,
    LOCATION,
    TILE,
    Choice,
    Decision,
    Point,
    Program,
)
from fewtune.schedule.space.search_space import SearchSpace, random_decision
from fewtune.schedule.space.tile_rules import (
    PADDING,
    ROWS_OUTSIDE,
    WORD_PADDING,
    Iterations,
    RegisterTile,
    RuledBlock,
    WeightedDraw,
    unroll_depth,
    written_speed,
)

_PRODUCTS = ("tirx.dot4_",)


def pads_words(module: tvm.IRModule) -> bool:
    """Whether a product of words reads padding that is slow to compute inside it.

    Such padding has a zero point that is read from memory, or fills up the channels. Inside the
    product, four bytes are then chosen one by one for each word, again for every filter.
    """
    schedule = tvm.s_tir.Schedule(module)
    return any(
        _is_slow_inside(schedule, handle)
        and any(_multiplies_words(schedule.get(each)) for each in schedule.get_consumers(handle))
        for handle in blocks_of(schedule)
    )


def _is_slow_inside(schedule: tvm.s_tir.Schedule, handle: Any) -> bool:
    block = schedule.get(handle)
    conditions = condition_axes(schedule, handle)
    return bool(conditions) and (len(block.reads) > 1 or len(block.iter_vars) - 1 in conditions)


def _multiplies_words(block: Any) -> bool:
    found = []

    def visit(call: Any) -> None:
        found.append(getattr(call.op, "name", "").startswith(_PRODUCTS))

    tvm_ffi.structural_walk(block.body, [(tvm.ir.Call, visit)], order="post")
    return any(found)


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
        self._threads = 1
        self._pads_words = False
        self._programs = WeightedDraw.of(space.programs, map(written_speed, space.programs))
        if "cpu" not in list(space.target.keys):
            return
        traits = CpuTraits.of(space.target)
        self._threads = traits.threads
        self._pads_words = pads_words(space.module)
        names = {c.block for p in space.programs for c in p.choices if c.kind == TILE and c.block}
        for name in sorted(names):
            ruled = RuledBlock.of(space.module, name, traits)
            if ruled is not None:
                self._ruled[name] = ruled

    @property
    def informed(self) -> bool:
        return bool(self._ruled)

    @property
    def contraction(self) -> RuledBlock | None:
        """The contraction with most of the work; None if no contraction has a rule."""
        return max(self._ruled.values(), key=lambda each: (each.points, each.name), default=None)

    def draw(self, random: np.random.Generator) -> Point:
        """Draw a point of any program."""
        program = self._programs.draw(random)
        tiles = {name: ruled.tile_draw.draw(random) for name, ruled in self._ruled.items()}
        # One draw for all axes of a tile, since their levels are nested loops.
        rows_outside = ROWS_OUTSIDE.draw(random)
        decisions = [
            self._decide(choice, tiles, rows_outside, random) for choice in program.choices
        ]
        return self._with_work_for_threads(program, decisions, random)

    def retiled(self, point: Point, random: np.random.Generator) -> Point:
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
        self, program: Program, decisions: list[Decision | None], random: np.random.Generator
    ) -> Point:
        """The point of these decisions, changed to have work for all threads."""
        for ruled in self._ruled.values():
            ruled.give_threads_work(program, decisions, self._threads, random)
        return Point(program.number, tuple(decisions))

    def _decide(
        self,
        choice: Choice,
        tiles: dict[str, RegisterTile],
        rows_outside: bool,
        random: np.random.Generator,
    ) -> Decision | None:
        if choice.kind == LOCATION:
            return (WORD_PADDING if self._pads_words else PADDING).draw(random)
        if choice.kind == CATEGORICAL:
            streamed = any(ruled.streamed for ruled in self._ruled.values())
            return unroll_depth(choice, random, streamed=streamed)
        ruled = self._ruled.get(choice.block)
        if ruled is None:
            return random_decision(choice, random)
        return ruled.split(choice, tiles[choice.block], rows_outside, random)

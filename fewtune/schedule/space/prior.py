"""Points of a search space that fill the vector registers: where a search on a CPU begins.

Nearly all factorisations of a tile leave registers empty, or spill them. A search that starts from
random ones spends its first dozens of trials on learning just that. Here the
register tile of a contraction is one that fits (`fewtune.schedule.tiling`): accumulators enough to
hide the latency of a multiply-add, few enough to stay in registers, whole vectors along the
contiguous axis. Every decision is drawn at random, with a weight for its expected speed
(`fewtune.schedule.space.decision_rates`).
"""

from __future__ import annotations

import numpy as np

from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.schedule.space.decision_rates import (
    padding_location,
    rows_are_outside,
    unroll_depth,
    written_speed,
)
from fewtune.schedule.space.design_space import (
    CATEGORICAL,
    LOCATION,
    TILE,
    Choice,
    Decision,
    Point,
    Program,
)
from fewtune.schedule.space.register_tiles import RegisterTile
from fewtune.schedule.space.search_space import SearchSpace, random_decision
from fewtune.schedule.space.tile_rules import Iterations, RuledBlock
from fewtune.schedule.space.weighted_draw import Chances

# Register tiles of at least this part of the best expected speed are worth a measurement each.
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
        Whether there is a rule for this task; without one, points are drawn at random.
    """

    def __init__(self, space: SearchSpace) -> None:
        self._space = space
        self._ruled: dict[str, RuledBlock] = {}
        self._threads = 1
        self._programs = Chances.of(space.programs, map(written_speed, space.programs))
        if "cpu" not in list(space.target.keys):
            return
        traits = CpuTraits.of(space.target)
        self._threads = traits.threads
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
        """One point, of any of the programs."""
        program = self._programs.draw(random)
        tiles = {name: ruled.chances.draw(random) for name, ruled in self._ruled.items()}
        # One choice of level for all axes of a tile: the levels are loops inside one another.
        rows_outside = rows_are_outside(random)
        decisions = [
            self._decide(choice, tiles, rows_outside, random) for choice in program.choices
        ]
        return self._shared_out(program, decisions, random)

    def retiled(self, point: Point, random: np.random.Generator) -> Point:
        """A neighbour with another register tile, which no change of a single decision gives."""
        program = self._space.programs[point.program]
        decisions = list(point.decisions)
        for ruled in self._ruled.values():
            if not ruled.retiled(program, decisions, ruled.chances.draw(random)):
                # Half of a tile and half of another may spill.
                return point
        return self._shared_out(program, decisions, random)

    def tile_of(self, point: Point) -> TileKey:
        """The register tile of a point; other decisions matter less."""
        program = self._space.programs[point.program]
        return tuple((name, each.iterations(program, point)) for name, each in self._ruled.items())

    def promise(self, tile: TileKey) -> float:
        """The expected speed of a register tile; 0 for one that is not worth trying."""
        promised = 1.0
        for name, iterations in tile:
            ruled = self._ruled[name]
            speed = ruled.speeds.get(iterations, 0.0)
            promised *= speed if speed >= _WORTH_TRYING * ruled.tiles[0].speed else 0.0
        return promised

    def _shared_out(
        self, program: Program, decisions: list[Decision | None], random: np.random.Generator
    ) -> Point:
        """The point of these decisions, with enough iterations for all threads."""
        for ruled in self._ruled.values():
            ruled.shared_out(program, decisions, self._threads, random)
        return Point(program.number, tuple(decisions))

    def _decide(
        self,
        choice: Choice,
        tiles: dict[str, RegisterTile],
        rows_outside: bool,
        random: np.random.Generator,
    ) -> Decision | None:
        if choice.kind == LOCATION:
            return padding_location(random)
        if choice.kind == CATEGORICAL:
            streamed = any(ruled.streamed for ruled in self._ruled.values())
            return unroll_depth(choice, random, streamed=streamed)
        ruled = self._ruled.get(choice.block)
        if ruled is None:
            return random_decision(choice, random)
        return ruled.cut(choice, tiles[choice.block], rows_outside, random)

"""The design spaces of a task: points are drawn, changed, applied, and read from traces.

A design space is a trace whose sampling instructions hold the decisions that a search varies (Shao
et al., Tensor Program Optimization with Probabilistic Programs, NeurIPS 2022). A `Point` is one
program of a task with a decision for each of its sampling instructions. All search strategies, and
the sharing of schedules, make their candidates here. So each candidate has passed MetaSchedule's
postprocessors, and is one that MetaSchedule's own search could find.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np

from fewtune.runtime.target import has_own_device
from fewtune.runtime.tvm import ms, tvm
from fewtune.schedule.space.design_space import (
    LOCATION,
    TILE,
    Choice,
    Decision,
    Point,
    Program,
    Trace,
    decision_of,
    digest_of,
    sampling,
)
from fewtune.schedule.tiling import divisors

# Only the order of draws depends on it; the spaces and their extents do not.
_SEED = 1


def generated(
    module: tvm.IRModule, target: tvm.target.Target, threads: int = 1
) -> tuple[Any, list[tvm.s_tir.Schedule]]:
    """Generate the design spaces of a task by MetaSchedule's rules.

    TVM moves the block after a product into the product's tiles, and raises if that block reads
    another one: a bias of a quantised layer that is computed and permuted in the kernel, and so was
    not inlined. For a CPU, the spaces are then generated with all blocks inlined.

    Parameters
    ----------
    module : IRModule
        With one kernel, named ``main``.
    target : Target
    threads : int
        Threads of the context, for the extraction of features.

    Returns
    -------
    context : TuneContext
        With the rules and postprocessors of these spaces.
    schedules : list of Schedule
        One for each space.

    Raises
    ------
    Exception
        Whatever TVM raises, if no space can be generated.
    """

    def context(generator: Any) -> Any:
        return ms.TuneContext(
            mod=module,
            target=target,
            space_generator=generator,
            search_strategy="replay-trace",
            task_name="main",
            rand_state=_SEED,
            num_threads=threads,
        )

    made = context("post-order-apply")
    try:
        return made, list(made.generate_design_space())
    except Exception:
        if has_own_device(target):
            raise
        rules = [_inlines_all(each) for each in made.space_generator.sch_rules]
        made = context(ms.space_generator.PostOrderApply(sch_rules=rules))
        return made, list(made.generate_design_space())


def _inlines_all(rule: Any) -> Any:
    """A CPU's rule for inlining without conditions on the order of axes; other rules as given."""
    if type(rule).__name__ != "AutoInline":
        return rule
    return ms.schedule_rule.AutoInline(
        into_producer=False,
        into_consumer=True,
        inline_const_tensor=True,
        disallow_if_then_else=True,
        require_injective=False,
        require_ordered=False,
        disallow_op=["tirx.exp"],
    )


# MetaSchedule tiles a spatial axis of a GPU by block, virtual thread, thread, and two loops.
_LEVELS, _VIRTUAL, _THREAD = 5, 1, 2
_MOST_VIRTUAL = 8
# After so many draws, any point is taken: some tasks have none within the limits.
_MOST_DRAWS = 64


class GpuLimits(NamedTuple):
    """The least and the most threads of a block."""

    least_threads: int
    most_threads: int

    @staticmethod
    def of(target: Any) -> GpuLimits:
        """The limits of a GPU target."""
        attributes = target.attrs
        warp = int(attributes.get("thread_warp_size", 32) or 32)
        most = int(attributes.get("max_threads_per_block", 0) or 0)
        return GpuLimits(warp, most or int(attributes.get("max_num_threads", 1024) or 1024))

    def allow(self, decisions: Sequence[Decision | None]) -> bool:
        """Whether the tiles among some decisions make a block within the limits."""
        tiles = [d for d in decisions if isinstance(d, tuple) and len(d) == _LEVELS]
        if not tiles:
            return True
        threads = prod(tile[_THREAD] for tile in tiles)
        virtual = prod(tile[_VIRTUAL] for tile in tiles)
        return self.least_threads <= threads <= self.most_threads and virtual <= _MOST_VIRTUAL


_MOST_THREADS = 8


def search_threads() -> int:
    """Threads that make candidates and extract their features."""
    return min(_MOST_THREADS, len(os.sched_getaffinity(0)))


@cache
def _executor() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(search_threads(), thread_name_prefix="search")


@dataclass(frozen=True)
class Made:
    """The result of applying a point: a schedule, or the reason why there is none."""

    schedule: tvm.s_tir.Schedule | None
    point: Point
    reason: str = ""


@dataclass
class SearchSpace:
    """The search space of one task.

    Parameters
    ----------
    module : IRModule
        The task's workload.
    target : Target
    """

    module: tvm.IRModule
    target: tvm.target.Target
    programs: list[Program] = field(init=False)

    def __post_init__(self) -> None:
        self.context, schedules = generated(self.module, self.target, search_threads())
        traces = [schedule.trace for schedule in schedules]
        self.programs = [Program.read(number, trace) for number, trace in enumerate(traces)]
        self._postprocs = list(self.context.space_generator.postprocs)
        self._limits = GpuLimits.of(self.target) if has_own_device(self.target) else None

    @cached_property
    def arguments(self) -> Any:
        """TVM's argument information of the task's function."""
        return ms.arg_info.ArgInfo.from_prim_func(self.module["main"])

    def random_point(self, random: np.random.Generator) -> Point:
        """A point with uniformly drawn decisions, within the limits of a GPU's blocks."""

        def draw() -> Point:
            program = self.programs[int(random.integers(len(self.programs)))]
            decisions = tuple(random_decision(choice, random) for choice in program.choices)
            return Point(program.number, decisions)

        return self._within_limits(draw)

    def _within_limits(self, draw: Callable[[], Point]) -> Point:
        """The first drawn point that fits a GPU's blocks; after many draws, the last one."""
        point = draw()
        for _ in range(_MOST_DRAWS):
            if self._limits is None or self._limits.allow(point.decisions):
                break
            point = draw()
        return point

    def changed(self, point: Point, random: np.random.Generator) -> Point:
        """A neighbour of ``point``: one decision is changed, as by MetaSchedule's mutators.

        In a tile, a factor moves from one level to another, or the tile is drawn again. The result
        is within the limits of a GPU's blocks.
        """
        return self._within_limits(lambda: self._neighbour(point, random))

    def _neighbour(self, point: Point, random: np.random.Generator) -> Point:
        program = self.programs[point.program]
        movable = [
            place
            for place, choice in enumerate(program.choices)
            if choice.kind == LOCATION or len(choice.ways) > 1
        ]
        if not movable:
            return point
        place = movable[int(random.integers(len(movable)))]
        choice, now = program.choices[place], point.decisions[place]
        if choice.kind == TILE and isinstance(now, tuple) and random.random() < 0.8:
            decision: Decision | None = _shift(now, choice, random)
        else:
            decision = random_decision(choice, random)
        decisions = list(point.decisions)
        decisions[place] = decision
        return Point(point.program, tuple(decisions))

    def crossed(self, first: Point, second: Point, random: np.random.Generator) -> Point:
        """A point that takes each decision from one of two points of the same program."""
        if first.program != second.program:
            return first
        pairs = [*zip(first.decisions, second.decisions, strict=True)]

        def draw() -> Point:
            decisions = (a if random.random() < 0.5 else b for a, b in pairs)
            return Point(first.program, tuple(decisions))

        return self._within_limits(draw)

    def make(self, point: Point, seed: int = 1) -> Made:
        """Apply a point and the postprocessors.

        Parameters
        ----------
        point : Point
        seed : int
            Of the decisions that are drawn meanwhile.

        Returns
        -------
        made : Made
            Its point has every decision.
        """
        program = self.programs[point.program]
        decisions = {
            choice.instruction: list(decision) if isinstance(decision, tuple) else decision
            for choice, decision in zip(program.choices, point.decisions, strict=True)
            if decision is not None
        }
        schedule = tvm.s_tir.Schedule(
            self.module, seed=seed, debug_mask="none", error_render_level="none"
        )
        try:
            Trace(program.insts, decisions).apply_to_schedule(schedule, remove_postproc=True)
            decided = [decision_of(schedule.trace, inst) for inst in sampling(schedule.trace)]
            schedule.enter_postproc()
            for postprocessor in self._postprocs:
                if not postprocessor.apply(schedule):
                    kind = type(postprocessor).__name__
                    return Made(None, point, f"rejected by {kind}")
        except Exception as fault:  # noqa: BLE001 (schedules fail to apply in many ways)
            return Made(None, point, f"does not apply: {type(fault).__name__}")
        return Made(schedule, Point(point.program, tuple(decided)))

    def make_all(self, points: Sequence[Point], seeds: Sequence[int]) -> list[Made]:
        """`make` several points in parallel, which is possible since TVM releases Python's lock."""
        return list(_executor().map(self.make, points, seeds))

    def read(self, trace: Trace) -> Point | None:
        """The point of a trace of this task; None if it has no point, as a default schedule."""
        decided = tuple(decision_of(trace, inst) for inst in sampling(trace))
        digest = digest_of(trace) if decided else ""
        found = (program for program in self.programs if program.digest == digest)
        return next((Point(program.number, decided) for program in found), None)

    def candidate(self, schedule: tvm.s_tir.Schedule) -> ms.search_strategy.MeasureCandidate:
        """A schedule in the form that TVM's cost models take."""
        return ms.search_strategy.MeasureCandidate(schedule, self.arguments)


def random_decision(choice: Choice, random: np.random.Generator) -> Decision | None:
    """Draw a decision uniformly; None if it is drawn while the program is applied."""
    if choice.kind == LOCATION:
        return None
    ways = choice.ways
    return ways[int(random.integers(len(ways)))] if ways else choice.default


def _shift(tile: tuple[int, ...], choice: Choice, random: np.random.Generator) -> Decision:
    """Move a small factor from one level of a tile to another."""
    for _ in range(8):
        source, sink = (int(i) for i in random.choice(len(tile), size=2, replace=False))
        factors = divisors(tile[source])[1:]
        if not factors:
            continue
        factor = factors[min(int(random.integers(4)), len(factors) - 1)]
        moved = list(tile)
        moved[source] //= factor
        moved[sink] *= factor
        if moved[-1] <= choice.innermost:
            return tuple(moved)
    return tile

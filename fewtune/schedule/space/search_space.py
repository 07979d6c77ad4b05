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
from typing import Any

import numpy as np

from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.target import has_own_device
from fewtune.runtime.tvm import ms, tvm
from fewtune.schedule.space.design_space import (
    CATEGORICAL,
    LOCATION,
    SAMPLING,
    TILE,
    Choice,
    Decision,
    Point,
    Program,
    Trace,
    decision_of,
    instructions,
    sampling,
    text_of,
)
from fewtune.schedule.space.generate import generated
from fewtune.schedule.space.gpu_limits import MOST_DRAWS, GpuLimits
from fewtune.schedule.space.vectorize_rows import vectorize_long_rows
from fewtune.schedule.tiling import divisors

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
        self._traits = None if has_own_device(self.target) else CpuTraits.of(self.target)

    @cached_property
    def arguments(self) -> Any:
        """TVM's argument information of the task's function."""
        return ms.arg_info.ArgInfo.from_prim_func(self.module["main"])

    def random_point(self, random: np.random.Generator) -> Point:
        """A point with uniformly drawn decisions, within the limits of a GPU's blocks."""
        return self._within_limits(lambda: self.any_point(random))

    def can_hold(self, point: Point) -> bool:
        """Whether a point's decisions fit a GPU's blocks; a CPU takes any point."""
        return self._limits is None or self._limits.allow(point.decisions)

    def _within_limits(self, draw: Callable[[], Point]) -> Point:
        """The first drawn point that `can_hold` accepts; after many draws, the last one."""
        point = draw()
        for _ in range(MOST_DRAWS):
            if self.can_hold(point):
                break
            point = draw()
        return point

    def any_point(self, random: np.random.Generator) -> Point:
        """As `random_point`, without the limits."""
        program = self.programs[int(random.integers(len(self.programs)))]
        return Point(
            program.number, tuple(random_decision(choice, random) for choice in program.choices)
        )

    def changed(self, point: Point, random: np.random.Generator) -> Point:
        """A neighbour of ``point``: one decision is changed, as by MetaSchedule's mutators.

        In a tile, a factor moves from one level to another, or the tile is drawn again. The result
        is within the limits of a GPU's blocks.
        """
        return self._within_limits(lambda: self.any_neighbour(point, random))

    def any_neighbour(self, point: Point, random: np.random.Generator) -> Point:
        """As `changed`, without the limits."""
        program = self.programs[point.program]
        movable = [
            place
            for place, choice in enumerate(program.choices)
            if len(choice.values) > 1 or choice.kind == LOCATION or _moves(choice)
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
        pairs = zip(first.decisions, second.decisions, strict=True)
        return Point(first.program, tuple(a if random.random() < 0.5 else b for a, b in pairs))

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
            if self._traits is not None:
                vectorize_long_rows(schedule, self._traits)
        except Exception as fault:  # noqa: BLE001 (schedules fail to apply in many ways)
            return Made(None, point, f"does not apply: {type(fault).__name__}")
        return Made(schedule, Point(point.program, tuple(decided)))

    def make_all(self, points: Sequence[Point], seeds: Sequence[int]) -> list[Made]:
        """`make` several points in parallel, which is possible since TVM releases Python's lock."""
        return list(_executor().map(self.make, points, seeds))

    def read(self, trace: Trace) -> Point | None:
        """The point of a trace of this task; None if it has no point, as a default schedule."""
        insts = instructions(trace)
        decided = tuple(
            decision_of(trace, inst) for inst in insts if str(inst.kind.name) in SAMPLING
        )
        text = text_of(trace) if decided else ""
        for program in self.programs:
            if decided and program.text == text:
                return Point(program.number, decided)
        return None

    def candidate(self, schedule: tvm.s_tir.Schedule) -> ms.search_strategy.MeasureCandidate:
        """A schedule in the form that TVM's cost models take."""
        return ms.search_strategy.MeasureCandidate(schedule, self.arguments)


def random_decision(choice: Choice, random: np.random.Generator) -> Decision | None:
    """Draw a decision uniformly; None if it is drawn while the program is applied."""
    if choice.kind == TILE:
        ways = choice.ways
        return ways[int(random.integers(len(ways)))] if ways else choice.default
    if choice.kind == CATEGORICAL:
        return int(random.integers(len(choice.values)))
    return None if choice.kind == LOCATION else choice.default


def _moves(choice: Choice) -> bool:
    """Whether a choice is a tile with more than one factorisation."""
    return choice.kind == TILE and len(choice.ways) > 1


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

"""A task's design spaces as decisions: sample them, change them, apply them, read them off a trace.

A design space is a trace whose sampling instructions hold the decisions that a search varies (Shao
et al., Tensor Program Optimization with Probabilistic Programs, NeurIPS 2022). A `Point` names one
program of a task and a decision for each of its sampling instructions; every search strategy and
the sharing of schedules build their candidates here, so that each candidate has passed the same
postprocessors, and each is one that MetaSchedule's own search could have found.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from typing import Any

import numpy as np

from fewtune.schedule.tiling import divisors
from fewtune.tvm_runtime import ms, tvm

Trace = tvm.s_tir.schedule.Trace
Decision = tuple[int, ...] | int

TILE, CATEGORICAL, LOCATION = "SamplePerfectTile", "SampleCategorical", "SampleComputeLocation"
SAMPLING = (TILE, "SamplePartitionedTile", CATEGORICAL, LOCATION)
_MOST_THREADS = 8


def search_threads() -> int:
    """Threads that make candidates and extract their features."""
    return min(_MOST_THREADS, len(os.sched_getaffinity(0)))


@cache
def _executor() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(search_threads(), thread_name_prefix="search")


def instructions(trace: Trace) -> list[Any]:
    """A trace's instructions before its postprocessing."""
    kept = []
    for instruction in trace.insts:
        if str(instruction.kind.name) == "EnterPostproc":
            break
        kept.append(instruction)
    return kept


def sampling(trace: Trace) -> list[Any]:
    """The sampling instructions of a trace before its postprocessing."""
    return [inst for inst in instructions(trace) if str(inst.kind.name) in SAMPLING]


@lru_cache(maxsize=8192)
def factorisations(extent: int, parts: int, innermost: int) -> tuple[tuple[int, ...], ...]:
    """All ways to write ``extent`` as a product of ``parts`` factors, the last bounded.

    Parameters
    ----------
    extent, parts : int
    innermost : int
        Largest last factor.
    """
    if parts == 1:
        return ((extent,),) if extent <= innermost else ()
    ways = []
    for factor in divisors(extent):
        rest = factorisations(extent // factor, parts - 1, innermost)
        ways.extend((factor, *tail) for tail in rest)
    return tuple(ways)


@dataclass(frozen=True)
class Choice:
    """One sampling instruction of a program.

    Attributes
    ----------
    kind : str
        `TILE`, `CATEGORICAL`, `LOCATION`, or TVM's name of another kind, which is never changed.
    instruction : Instruction
    given : tuple of int, or int
        The decision that the design space came with.
    extent, innermost : int
        Of a tile: the iterations to split, the largest last factor.
    values : tuple of int
        Of a categorical choice: what there is to choose from.
    block, axis : str, int
        Of a tile: the block whose loop it splits, and which loop.
    """

    kind: str
    instruction: Any
    given: Decision
    extent: int = 1
    innermost: int = 1
    values: tuple[int, ...] = ()
    block: str = ""
    axis: int = -1

    @property
    def ways(self) -> tuple[tuple[int, ...], ...]:
        """Every decision of a tile."""
        assert isinstance(self.given, tuple)
        return factorisations(self.extent, len(self.given), self.innermost)


@dataclass(frozen=True)
class Program:
    """One design space: its instructions, and the choices among them."""

    number: int
    insts: list[Any]
    choices: tuple[Choice, ...]
    text: str

    @staticmethod
    def read(number: int, trace: Trace) -> Program:
        """Read a design space as TVM generated it."""
        insts = instructions(trace)
        blocks, loops = _names(insts)
        choices = []
        for instruction in insts:
            kind = str(instruction.kind.name)
            if kind not in SAMPLING:
                continue
            given = decision_of(trace, instruction)
            if kind == TILE and isinstance(given, tuple):
                limit = int(instruction.attrs[1])
                block, axis = _loop_of(instruction, blocks, loops)
                choice = Choice(
                    kind,
                    instruction,
                    given,
                    extent=math.prod(given),
                    innermost=limit if limit > 0 else 2**31,
                    block=block,
                    axis=axis,
                )
            elif kind == CATEGORICAL:
                values = tuple(int(value) for value in instruction.attrs[0])
                choice = Choice(kind, instruction, given, values=values)
            else:
                choice = Choice(kind, instruction, given)
            choices.append(choice)
        return Program(number, insts, tuple(choices), _text(trace))


@dataclass(frozen=True)
class Point:
    """One schedule of a task: a program, and a decision a choice.

    A decision of None is drawn while the program is applied: the loops at which a block can be
    computed are known only then.
    """

    program: int
    decisions: tuple[Decision | None, ...]


@dataclass(frozen=True)
class Made:
    """A point applied: its schedule, or the reason why there is none."""

    schedule: tvm.s_tir.Schedule | None
    point: Point
    reason: str = ""


@dataclass
class SearchSpace:
    """All that can be searched for one task.

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
        self.context = ms.TuneContext(
            mod=self.module,
            target=self.target,
            space_generator="post-order-apply",
            search_strategy="replay-trace",
            task_name="main",
            rand_state=1,
            # Of the feature extraction; the spaces are the same with any number.
            num_threads=search_threads(),
        )
        spaces = [schedule.trace for schedule in self.context.generate_design_space()]
        self.programs = [Program.read(number, trace) for number, trace in enumerate(spaces)]
        self._postprocs = list(self.context.space_generator.postprocs)

    @cached_property
    def arguments(self) -> Any:
        """What TVM calls the argument information of the task's function."""
        return ms.arg_info.ArgInfo.from_prim_func(self.module["main"])

    def random_point(self, random: np.random.Generator) -> Point:
        """Any point, every decision of a choice as likely as the next."""
        program = self.programs[int(random.integers(len(self.programs)))]
        return Point(
            program.number, tuple(random_decision(choice, random) for choice in program.choices)
        )

    def changed(self, point: Point, random: np.random.Generator) -> Point:
        """A neighbour of ``point``: one choice decided anew (MetaSchedule's mutators).

        A tile moves a factor from one level to another, or is drawn again.
        """
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
        """A point that takes each decision from one of two of the same program."""
        if first.program != second.program:
            return first
        pairs = zip(first.decisions, second.decisions, strict=True)
        return Point(first.program, tuple(a if random.random() < 0.5 else b for a, b in pairs))

    def make(self, point: Point, seed: int = 1) -> Made:
        """Apply a point and the postprocessors; the result's point has every decision."""
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
        except Exception as fault:  # noqa: BLE001 (a schedule that does not apply, whatever why)
            return Made(None, point, f"does not apply: {type(fault).__name__}")
        return Made(schedule, Point(point.program, tuple(decided)))

    def make_all(self, points: Sequence[Point], seeds: Sequence[int]) -> list[Made]:
        """`make` of several points, in their order, on all cores: TVM holds no lock meanwhile."""
        return list(_executor().map(self.make, points, seeds))

    def read(self, trace: Trace) -> Point | None:
        """The point of a trace of this task; None for one of another kind, such as a default."""
        insts = instructions(trace)
        decided = tuple(
            decision_of(trace, inst) for inst in insts if str(inst.kind.name) in SAMPLING
        )
        text = _text(trace) if decided else ""
        for program in self.programs:
            if decided and program.text == text:
                return Point(program.number, decided)
        return None

    def candidate(self, schedule: tvm.s_tir.Schedule) -> ms.search_strategy.MeasureCandidate:
        """A schedule as the cost model takes it."""
        return ms.search_strategy.MeasureCandidate(schedule, self.arguments)


def decision_of(trace: Trace, instruction: Any) -> Decision:
    """A decision as plain Python integers."""
    decision = trace.get_decision(instruction)
    if hasattr(decision, "__iter__"):
        return tuple(int(factor) for factor in decision)
    return int(decision)


def random_decision(choice: Choice, random: np.random.Generator) -> Decision | None:
    """Any decision of a choice; None where it is drawn while the program is applied."""
    if choice.kind == TILE:
        ways = choice.ways
        return ways[int(random.integers(len(ways)))] if ways else choice.given
    if choice.kind == CATEGORICAL:
        return int(random.integers(len(choice.values)))
    return None if choice.kind == LOCATION else choice.given


def _moves(choice: Choice) -> bool:
    return choice.kind == TILE and len(choice.ways) > 1


def _shift(tile: tuple[int, ...], choice: Choice, random: np.random.Generator) -> Decision:
    """Move a prime factor, or two, from one level of a tile to another."""
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


def _names(insts: list[Any]) -> tuple[dict[Any, str], dict[Any, tuple[Any, int]]]:
    """Blocks by their names, and loops as (block, place), as a program's variables."""
    blocks: dict[Any, str] = {}
    loops: dict[Any, tuple[Any, int]] = {}
    for instruction in insts:
        kind = str(instruction.kind.name)
        if kind in ("GetSBlock", "GetBlock"):
            blocks[instruction.outputs[0]] = str(instruction.attrs[0])
        elif kind == "GetLoops":
            for place, loop in enumerate(instruction.outputs):
                loops[loop] = (instruction.inputs[0], place)
    return blocks, loops


def _loop_of(
    instruction: Any, blocks: dict[Any, str], loops: dict[Any, tuple[Any, int]]
) -> tuple[str, int]:
    block, axis = loops.get(instruction.inputs[0], (None, -1))
    return blocks.get(block, ""), axis


def _text(trace: Trace) -> str:
    """A trace's needed instructions as TVM writes them: equal for equal programs."""
    needed = trace.simplified(remove_postproc=True)
    return "\n".join(str(inst) for inst in needed.as_json()[0])

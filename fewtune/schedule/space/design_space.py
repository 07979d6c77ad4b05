"""A design space as TVM generated it: its instructions, and the choices that they sample."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import takewhile
from typing import Any, TypeAlias

from fewtune.runtime.tvm import tvm
from fewtune.schedule.tiling import divisors

Trace: TypeAlias = tvm.s_tir.schedule.Trace
Decision = tuple[int, ...] | int

TILE, CATEGORICAL, LOCATION = "SamplePerfectTile", "SampleCategorical", "SampleComputeLocation"
SAMPLING = (TILE, "SamplePartitionedTile", CATEGORICAL, LOCATION)
# TVM's numbers of locations: inlined into the consumer; at the root, before all else; at an outer
# loop, inside of which only a thread's tile is needed.
INLINED, AHEAD, OUTSIDE = -2, -1, 2
# The levels of MetaSchedule's tiling for CPUs, on spatial axes and on reduction axes.
SPATIAL_LEVELS, REDUCTION_LEVELS = 4, 2
_WRITTEN_BACK = "ReverseComputeAt"


def instructions(trace: Trace) -> list[Any]:
    """A trace's instructions before its postprocessing."""
    return [*takewhile(lambda each: str(each.kind.name) != "EnterPostproc", trace.insts)]


def sampling(trace: Trace) -> list[Any]:
    """The sampling instructions of a trace before its postprocessing."""
    return [inst for inst in instructions(trace) if str(inst.kind.name) in SAMPLING]


@lru_cache(maxsize=8192)
def factorisations(extent: int, parts: int, innermost: int) -> tuple[tuple[int, ...], ...]:
    """All ways to write ``extent`` as a product of ``parts`` factors.

    Parameters
    ----------
    extent, parts : int
    innermost : int
        The largest last factor.
    """
    if parts == 1:
        return ((extent,),) if extent <= innermost else ()
    ways: list[tuple[int, ...]] = []
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
    default : tuple of int, or int
        The decision in the design space that TVM generated.
    extent, innermost : int
        For a tile: the iterations to split, and the largest last factor.
    values : tuple of int
        For a categorical choice: the values.
    block, axis : str, int
        For a tile: the block whose loop it splits, and the number of the loop.
    """

    kind: str
    instruction: Any
    default: Decision
    extent: int = 1
    innermost: int = 1
    values: tuple[int, ...] = ()
    block: str = ""
    axis: int = -1

    @property
    def ways(self) -> tuple[Decision, ...]:
        """All decisions of a tile or of a categorical choice; none of other kinds."""
        if self.kind == TILE and isinstance(self.default, tuple):
            return factorisations(self.extent, len(self.default), self.innermost)
        return tuple(range(len(self.values)))


@dataclass(frozen=True)
class Program:
    """One design space: its instructions, and the choices that they sample.

    Attributes
    ----------
    number : int
        Its place among the programs of its task.
    insts : list of Instruction
    choices : tuple of Choice
    digest : str
        See `digest_of`; no other program of its task has it.
    form : tuple of str
        See `form_of`.
    """

    number: int
    insts: list[Any]
    choices: tuple[Choice, ...]
    digest: str
    form: tuple[str, ...]

    @cached_property
    def written(self) -> int:
        """The tile after which the innermost result is written back; -1 if only at the end."""
        return max(written_levels(self.insts), default=-1)

    @staticmethod
    def read(number: int, trace: Trace) -> Program:
        """Read a design space as TVM generated it."""
        insts = instructions(trace)
        loops = _loops(insts)
        choices = []
        for instruction in insts:
            kind = str(instruction.kind.name)
            if kind not in SAMPLING:
                continue
            choice = Choice(kind, instruction, decision_of(trace, instruction))
            if kind == TILE and isinstance(choice.default, tuple):
                limit = int(instruction.attrs[1])
                block, axis = loops.get(instruction.inputs[0], ("", -1))
                extent, innermost = math.prod(choice.default), limit if limit > 0 else 2**31
                choice = replace(choice, extent=extent, innermost=innermost, block=block, axis=axis)
            elif kind == CATEGORICAL:
                choice = replace(choice, values=tuple(map(int, instruction.attrs[0])))
            choices.append(choice)
        return Program(number, insts, tuple(choices), digest_of(trace), form_of(insts))


@dataclass(frozen=True)
class Point:
    """One schedule of a task: a program, and a decision for each choice.

    A decision of None is drawn while the program is applied: the loops at which a block can be
    computed are known only then.
    """

    program: int
    decisions: tuple[Decision | None, ...]


def point_from_json(values: Sequence[Any]) -> Point:
    """A point of JSON's lists: its program, and its decisions."""
    program, decisions = values
    return Point(program, tuple(tuple(d) if isinstance(d, list) else d for d in decisions))


def written_levels(insts: Sequence[Any]) -> list[int]:
    """The tile after which each result is written back, in order; 0 is the outermost."""
    levels = {
        loop: level
        for instruction in insts
        if str(instruction.kind.name) == "Split"
        for level, loop in enumerate(instruction.outputs)
    }
    return [
        levels.get(instruction.inputs[1], 0)
        for instruction in insts
        if str(instruction.kind.name) == _WRITTEN_BACK
    ]


def form_of(insts: Sequence[Any]) -> tuple[str, ...]:
    """The kinds of a program's instructions, in order, and the tiles after which it writes back.

    Programs with the same instructions may differ in these tiles. Names of loops do not matter.
    """
    levels = iter(written_levels(insts))
    kinds = (str(instruction.kind.name) for instruction in insts)
    return tuple(f"{kind} {next(levels)}" if kind == _WRITTEN_BACK else kind for kind in kinds)


def digest_of(trace: Trace) -> str:
    """A digest of a trace's simplified instructions, equal for equal programs: 16 hex digits."""
    needed = trace.simplified(remove_postproc=True)
    text = "\n".join(str(inst) for inst in needed.as_json()[0])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def decision_of(trace: Trace, instruction: Any) -> Decision:
    """A decision as plain Python integers."""
    decision = trace.get_decision(instruction)
    if hasattr(decision, "__iter__"):
        return tuple(int(factor) for factor in decision)
    return int(decision)


def _loops(insts: list[Any]) -> dict[Any, tuple[str, int]]:
    """The block of each of a program's loops, and the loop's number, by its variable."""
    blocks: dict[Any, str] = {}
    loops: dict[Any, tuple[str, int]] = {}
    for instruction in insts:
        kind = str(instruction.kind.name)
        if kind in ("GetSBlock", "GetBlock"):
            blocks[instruction.outputs[0]] = str(instruction.attrs[0])
        elif kind == "GetLoops":
            block = blocks.get(instruction.inputs[0], "")
            loops.update((loop, (block, place)) for place, loop in enumerate(instruction.outputs))
    return loops

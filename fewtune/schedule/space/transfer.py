"""Move a tuned schedule from one task to another.

Two tasks of the same form can share the shape of the loop nest: the register tile, the unrolling,
the places where buffers are computed. A donor's decisions are moved into the other task's design
space, one sampling instruction after the other. So every candidate is one that the task's own
search could have found. A tile becomes the factorisation of the new extent that is nearest to the
donor's in log distance. The innermost factors have the largest weights: they are the register tile.
Method: the schedule sharing of TVM's RFC #4188, which moved AutoTVM configurations, restated for
MetaSchedule traces.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fewtune.runtime.tvm import tvm
from fewtune.schedule.space.design_space import (
    CATEGORICAL,
    LOCATION,
    TILE,
    Choice,
    Decision,
    Point,
    Program,
    Trace,
    decision_of,
    digest_of,
    factorisations,
    form_of,
    instructions,
    sampling,
)
from fewtune.schedule.space.search_space import Made, SearchSpace

# Weight of a tile's factors from the innermost outwards.
_INNERMOST_FIRST = (8.0, 4.0, 2.0, 1.0)
# Elements of the smallest vector register.
_LEAST_VECTOR = 4


def nearest_tile(donor: tuple[int, ...], extent: int, innermost: int) -> tuple[int, ...] | None:
    """The factorisation of ``extent`` nearest to a donor's tile; None if there is none.

    Nearest means in log distance, with the largest weights for the innermost factors. If the
    donor's innermost factor is a vector, a power of two, so is the tile's if possible.
    """
    weights = [_INNERMOST_FIRST[min(i, 3)] for i in range(len(donor))][::-1]

    def distance(tile: tuple[int, ...]) -> tuple[float, tuple[int, ...]]:
        apart = sum(
            weight * math.log2(ours / theirs) ** 2
            for weight, ours, theirs in zip(weights, tile, donor, strict=True)
        )
        return apart, tile

    ways = factorisations(extent, len(donor), innermost)
    if not ways:
        return None
    if _is_vector(donor[-1]):
        ways = tuple(tile for tile in ways if _is_vector(tile[-1])) or ways
    return min(ways, key=distance)


def _is_vector(factor: int) -> bool:
    """Whether a factor fills vector registers: for 144, 36 is nearer to 32 than 16, but spills."""
    return factor >= _LEAST_VECTOR and factor & (factor - 1) == 0


@dataclass(frozen=True)
class Sample:
    """One sampling instruction of a donor, with its decision.

    Attributes
    ----------
    kind : str
    decision : tuple of int, or int
    candidates : int
        For a categorical choice: the number of values.
    """

    kind: str
    decision: Decision
    candidates: int = 0


@dataclass(frozen=True)
class Donation:
    """A donor's schedule: the form of its program, and its decisions.

    Attributes
    ----------
    form : tuple of str
        The form of its program (`fewtune.schedule.space.design_space.form_of`).
    program : str
        The digest of its program, for tasks that have the same one (`digest_of`).
    samples : tuple of Sample
        Its sampling instructions, in order.
    """

    form: tuple[str, ...]
    samples: tuple[Sample, ...]
    program: str = ""

    @staticmethod
    def of(trace: Trace) -> Donation:
        """The donation of a measured trace."""
        samples = []
        for inst in sampling(trace):
            kind = str(inst.kind.name)
            candidates = len(inst.attrs[0]) if kind == CATEGORICAL else 0
            samples.append(Sample(kind, decision_of(trace, inst), candidates))
        return Donation(form_of(instructions(trace)), tuple(samples), digest_of(trace))


def donation_of(module: tvm.IRModule, trace: Any) -> Donation:
    """The donation of a task's trace, given as JSON values."""
    schedule = tvm.s_tir.Schedule(module)
    tvm.s_tir.schedule.Trace.apply_json_to_schedule(trace, schedule)
    return Donation.of(schedule.trace)


def move(donations: Sequence[Donation], space: SearchSpace) -> list[Made]:
    """Move donors' decisions into the search space of another task.

    Parameters
    ----------
    donations : sequence of Donation
    space : SearchSpace
        Of the task that takes them.

    Returns
    -------
    made : list of Made
        A schedule for each, or the reason why there is none.
    """
    found: list[Point | str] = []
    for donation in donations:
        try:
            found.append(fit(donation, space))
        except UnfitError as unfit:
            found.append(str(unfit))
    points = [each for each in found if isinstance(each, Point)]
    made = iter(space.make_all(points, [1] * len(points)))
    return [
        Made(None, Point(0, ()), each) if isinstance(each, str) else next(made) for each in found
    ]


class UnfitError(Exception):
    """A donor's decisions do not fit another task; the message says why."""


def fit(donation: Donation, space: SearchSpace) -> Point:
    """The point of a search space that is nearest to a donor's decisions, not applied yet.

    Parameters
    ----------
    donation : Donation
    space : SearchSpace
        Of the task that takes it.

    Raises
    ------
    UnfitError
        If the decisions do not fit this task.
    """
    kinds = [sample.kind for sample in donation.samples if sample.kind != LOCATION]
    fitting = [
        program
        for program in space.programs
        if [choice.kind for choice in program.choices if choice.kind != LOCATION] == kinds
    ]
    if not kinds or not fitting:
        raise UnfitError("no design space of the same form")
    same = [program for program in fitting if program.digest == donation.program]
    program = min(same or fitting, key=lambda program: _difference(donation.form, program))
    return Point(program.number, _decisions(donation.samples, program))


def _decisions(samples: tuple[Sample, ...], program: Program) -> tuple[Decision | None, ...]:
    # Compute locations are matched in their own order: one task may have more of them.
    places = [sample for sample in samples if sample.kind == LOCATION]
    others = [sample for sample in samples if sample.kind != LOCATION]
    decisions: list[Decision | None] = []
    for choice in program.choices:
        group = places if choice.kind == LOCATION else others
        # A block that the donor lacks, such as padding, keeps the location of the design space.
        decisions.append(_fitted(group.pop(0), choice) if group else choice.default)
    return tuple(decisions)


def _fitted(theirs: Sample, choice: Choice) -> Decision:
    if choice.kind == TILE and isinstance(theirs.decision, tuple):
        assert isinstance(choice.default, tuple)
        if len(theirs.decision) != len(choice.default):
            raise UnfitError("a tile has another number of levels")
        tile = nearest_tile(theirs.decision, choice.extent, choice.innermost)
        if tile is None:
            raise UnfitError("no factorisation fits a tile")
        return tile
    if choice.kind == CATEGORICAL and theirs.candidates != len(choice.values):
        raise UnfitError("a choice has other candidates")
    return theirs.decision


def _difference(form: tuple[str, ...], program: Program) -> int:
    """The number of instructions that two forms do not share; 1 if only their order differs."""
    words = {*form, *program.form}
    apart = sum(abs(form.count(word) - program.form.count(word)) for word in words)
    return apart + (form != program.form)

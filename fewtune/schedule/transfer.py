"""Move a tuned schedule from one task to another.

What transfers between two tasks of the same form is the shape of the loop nest: the register
tile, the unrolling, where buffers are computed. A donor's decisions are carried over one sampling
instruction after the other into the dependent's own design space, so that every candidate is one
that the dependent's own search could have found. A tile becomes the factorisation of the new
extent that is nearest to the donor's in log distance, where the innermost factors weigh most:
they are the register tile. Method: the schedule sharing of TVM's RFC #4188, which moved AutoTVM
configurations, restated for MetaSchedule traces.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fewtune.tvm_runtime import ms, tvm

_LOCATION = "SampleComputeLocation"
_SAMPLING = ("SamplePerfectTile", "SamplePartitionedTile", "SampleCategorical", _LOCATION)
# Weight of a tile's factors from the innermost outwards.
_INNERMOST_FIRST = (8.0, 4.0, 2.0, 1.0)


@dataclass(frozen=True)
class Moved:
    """A trace moved to a task: the schedule, or the reason why there is none."""

    schedule: tvm.s_tir.Schedule | None
    reason: str = ""


def instructions(trace: tvm.s_tir.schedule.Trace) -> list[Any]:
    """A trace's instructions before its postprocessing."""
    kept = []
    for instruction in trace.insts:
        if str(instruction.kind.name) == "EnterPostproc":
            break
        kept.append(instruction)
    return kept


def sampling(trace: tvm.s_tir.schedule.Trace) -> list[Any]:
    """The sampling instructions of a trace before its postprocessing."""
    return [inst for inst in instructions(trace) if str(inst.kind.name) in _SAMPLING]


@lru_cache(maxsize=4096)
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
    for factor in range(1, extent + 1):
        if extent % factor == 0:
            rest = factorisations(extent // factor, parts - 1, innermost)
            ways.extend((factor, *tail) for tail in rest)
    return tuple(ways)


def nearest_tile(donor: list[int], extent: int, innermost: int) -> list[int] | None:
    """The factorisation of ``extent`` nearest to a donor's tile; None if there is none."""
    weights = [_INNERMOST_FIRST[min(i, 3)] for i in range(len(donor))][::-1]

    def distance(tile: tuple[int, ...]) -> tuple[float, tuple[int, ...]]:
        apart = sum(
            weight * math.log2(ours / theirs) ** 2
            for weight, ours, theirs in zip(weights, tile, donor, strict=True)
        )
        return apart, tile

    ways = factorisations(extent, len(donor), innermost)
    return list(min(ways, key=distance)) if ways else None


class Receiver:
    """A task that takes schedules from others.

    Parameters
    ----------
    module : IRModule
        The task's workload.
    target : Target
    """

    def __init__(self, module: tvm.IRModule, target: tvm.target.Target) -> None:
        self._module = module
        self._context = ms.TuneContext(
            mod=module,
            target=target,
            space_generator="post-order-apply",
            search_strategy="replay-trace",
            task_name="receiver",
            rand_state=1,
            num_threads=1,
        )
        self._spaces = [space.trace for space in self._context.generate_design_space()]

    def take(self, donor: tvm.s_tir.schedule.Trace) -> Moved:
        """Move a donor's trace to this task."""
        kinds = _choices(donor)
        fitting = [space for space in self._spaces if _choices(space) == kinds]
        if not kinds or not fitting:
            return Moved(None, "no design space of the same form")
        form = [str(inst.kind.name) for inst in instructions(donor)]
        space = min(fitting, key=lambda trace: _difference(form, trace))
        try:
            decisions = self._decisions(donor, space)
        except _UnfitError as unfit:
            return Moved(None, str(unfit))
        schedule = tvm.s_tir.Schedule(self._module)
        try:
            for instruction, decision in decisions:
                space = space.with_decision(instruction, decision, remove_postproc=True)
            space.apply_to_schedule(schedule, remove_postproc=True)
            schedule.enter_postproc()
            for postprocessor in self._context.space_generator.postprocs:
                if not postprocessor.apply(schedule):
                    return Moved(None, f"rejected by {_class_name(postprocessor)}")
        except Exception as fault:  # noqa: BLE001 (a schedule that does not apply, whatever why)
            return Moved(None, f"does not apply: {type(fault).__name__}")
        return Moved(schedule)

    def _decisions(
        self, donor: tvm.s_tir.schedule.Trace, space: tvm.s_tir.schedule.Trace
    ) -> list[tuple[Any, Any]]:
        given = _grouped(sampling(donor))
        decisions = []
        for ours in sampling(space):
            kind = str(ours.kind.name)
            group = given[kind == _LOCATION]
            if not group:
                # A block that the donor lacks, such as padding, stays where the space puts it.
                continue
            theirs = group.pop(0)
            decision = donor.get_decision(theirs)
            if kind == "SamplePerfectTile":
                own = [int(factor) for factor in space.get_decision(ours)]
                tile = [int(factor) for factor in decision]
                if len(tile) != len(own):
                    raise _UnfitError("a tile has another number of levels")
                limit = int(ours.attrs[1])
                moved = nearest_tile(tile, math.prod(own), limit if limit > 0 else 2**31)
                if moved is None:
                    raise _UnfitError("no factorisation fits a tile")
                decisions.append((ours, moved))
            elif kind == "SampleCategorical":
                if len(ours.attrs[0]) != len(theirs.attrs[0]):
                    raise _UnfitError("a choice has other candidates")
                decisions.append((ours, int(decision)))
            else:
                decisions.append((ours, decision))
        return decisions


def _choices(trace: tvm.s_tir.schedule.Trace) -> list[str]:
    """Kinds of a trace's sampling instructions, without the places of its helper blocks."""
    return [str(inst.kind.name) for inst in sampling(trace) if str(inst.kind.name) != _LOCATION]


def _grouped(samples: list[Any]) -> dict[bool, list[Any]]:
    """Sampling instructions, those of places of blocks apart from the others."""
    return {
        is_location: [i for i in samples if (str(i.kind.name) == _LOCATION) == is_location]
        for is_location in (False, True)
    }


class _UnfitError(Exception):
    pass


def _difference(form: list[str], trace: tvm.s_tir.schedule.Trace) -> int:
    """How many instructions two forms do not share, by kind."""
    other = [str(inst.kind.name) for inst in instructions(trace)]
    kinds = {*form, *other}
    return sum(abs(form.count(kind) - other.count(kind)) for kind in kinds) + (form != other)


def _class_name(postprocessor: Any) -> str:
    return str(type(postprocessor).__name__)

"""Finds a compilation plan that builds and whose outputs are right.

If a library is wrong, or does not build, neither the model nor its tuning is lost. The search finds
the responsible rewrites and kernel schedules, leaves them out, and names them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fewtune.artifacts import LeftOut, ReplacedSchedule
from fewtune.compile.build import REWRITES, BuiltModel, Plan
from fewtune.compile.schedules import Level, kind_and_line

_WRONG = "wrong output"


class WorkingPlan(NamedTuple):
    """A plan that works, its build, and the error of its outputs: above 1 if no plan works."""

    plan: Plan
    built: BuiltModel
    error: float


class _Tried(NamedTuple):
    """A plan, its build and error, and its fault: empty if it builds and its outputs are right."""

    plan: Plan
    built: BuiltModel | None
    error: float
    fault: str
    raised: Exception | None = None


@dataclass
class PlanSearch:
    """A search for a plan that works.

    Parameters
    ----------
    build : callable
        Builds a plan; may raise any exception.
    error_of : callable
        Gives the error of a build's outputs; at most 1 is right.
    plain : callable
        Gives the level of each kernel by default schedules alone (`KernelSchedules.plain`).
    say : callable
        Gets lines about the progress of the search.

    Attributes
    ----------
    left_out : list of LeftOut
        Rewrites, with reasons.
    replaced : list of ReplacedSchedule
        Kernels that lost their schedules, with reasons.
    """

    build: Callable[[Plan], BuiltModel]
    error_of: Callable[[BuiltModel], float]
    plain: Callable[[], dict[str, Level]]
    say: Callable[[str], None] = lambda _: None
    left_out: list[LeftOut] = field(default_factory=list)
    replaced: list[ReplacedSchedule] = field(default_factory=list)

    def find(self, plan: Plan) -> WorkingPlan:
        """The given plan, or the nearest one that works.

        Raises
        ------
        Exception
            If even the build without rewrites and tuned schedules fails.
        """
        found = self._try(plan)
        if found.fault:
            self.say(f"the library cannot be used ({found.fault}); looking for the cause")
            found = self._without_rewrites(found) or self._without_schedules(found)
        if found.built is None:
            assert found.raised is not None
            raise found.raised
        return WorkingPlan(found.plan, found.built, found.error)

    def _try(self, plan: Plan) -> _Tried:
        try:
            built = self.build(plan)
            error = self.error_of(built)
        except Exception as fault:  # noqa: BLE001 (a part of a model may fail in any way)
            return _Tried(plan, None, math.inf, kind_and_line(fault), fault)
        # NaN is not right.
        return _Tried(plan, built, error, "" if error <= 1 else _WRONG)

    def _without_rewrites(self, faulty: _Tried) -> _Tried | None:
        """The plan without the one rewrite that is at fault; None if it is not one alone."""
        for rewrite in (each for each in REWRITES if each in faulty.plan.rewrites):
            tried = self._try(Plan(faulty.plan.levels, faulty.plan.rewrites - {rewrite}))
            if not tried.fault:
                self.left_out.append(LeftOut(what=rewrite, reason=faulty.fault))
                return tried
        return None

    def _without_schedules(self, faulty: _Tried) -> _Tried:
        """The plan without the schedules at fault, and without all rewrites if these are, too."""
        levels, rewrites = faulty.plan.levels, faulty.plan.rewrites
        if rewrites and not (bare := self._try(Plan(levels, frozenset()))).fault:
            self._leave_out_all(faulty)
            return bare
        levels = self._right_levels(levels)
        repaired = self._try(Plan(levels, rewrites))
        if not repaired.fault or not rewrites:
            return repaired
        found = self._without_rewrites(repaired)
        if found is None:
            self._leave_out_all(repaired)
            found = self._try(Plan(levels, frozenset()))
        return found

    def _leave_out_all(self, faulty: _Tried) -> None:
        self.left_out += [
            LeftOut(what=rewrite, reason=faulty.fault)
            for rewrite in REWRITES
            if rewrite in faulty.plan.rewrites
        ]

    def _right_levels(self, given: Mapping[str, Level]) -> dict[str, Level]:
        """The levels, changed for kernels that do not build or compute wrong results."""
        base, levels = self.plain(), dict(given)
        if self._try(Plan(base, frozenset())).fault:
            nothing = dict.fromkeys(levels, Level.UNSCHEDULED)
            if self._try(Plan(nothing, frozenset())).fault:
                # No schedule is to blame.
                return levels
            for name in self._wrong_kernels(base, nothing):
                base[name] = Level.UNSCHEDULED
        for _ in given:
            wrong = self._wrong_kernels(levels, base)
            if not wrong:
                break
            for name, reason in wrong.items():
                levels[name] = base[name]
                self.say(f"{name}: {reason}; its schedule is now: {base[name].text}")
                self.replaced.append(
                    ReplacedSchedule(kernel=name, schedule=base[name].text, reason=reason)
                )
        return levels

    def _wrong_kernels(self, levels: dict[str, Level], base: dict[str, Level]) -> dict[str, str]:
        """The kernels whose levels are at fault, with reasons; others have those of ``base``."""
        reasons: dict[str, str] = {}

        def is_wrong(some: Sequence[str]) -> bool:
            chosen = {**base, **{name: levels[name] for name in some}}
            fault = self._try(Plan(chosen, frozenset())).fault
            reasons.update(dict.fromkeys(some, fault))
            return bool(fault)

        differing = [name for name in sorted(levels) if levels[name] != base[name]]
        return {name: reasons[name] or _WRONG for name in find_by_halves(differing, is_wrong)}


def find_by_halves(names: Sequence[str], is_wrong: Callable[[Sequence[str]], bool]) -> list[str]:
    """The members of a group that make it wrong.

    Parameters
    ----------
    names : sequence of str
    is_wrong : callable
        Whether the result is wrong with these members alone. It is called about ``2 k log2(n)``
        times if ``k`` of ``n`` are wrong.

    Returns
    -------
    wrong : list of str
        In the order of ``names``; a whole group if it is wrong and neither of its halves is.
    """
    if not names or not is_wrong(names):
        return []
    if len(names) == 1:
        return list(names)
    middle = len(names) // 2
    halves = (names[:middle], names[middle:])
    return [name for half in halves for name in find_by_halves(half, is_wrong)] or list(names)

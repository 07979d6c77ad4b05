"""Finds a compilation plan that builds and whose outputs are right.

If a library is wrong, or does not build, neither the model nor its tuning is lost. The search finds
the responsible rewrites and kernel schedules, leaves them out, and names them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from fewtune.artifacts import LeftOut, ReplacedSchedule
from fewtune.compile.bisection import find_by_halves
from fewtune.compile.build import REWRITES, Built, Plan
from fewtune.compile.schedules import Level, kind_and_line


@dataclass
class WorkingPlan:
    """A plan that works, its build, and the parts that it leaves out.

    Attributes
    ----------
    plan : Plan
    built : Built
    error : float
        Of its outputs; above the bound if no plan works.
    left_out : list of LeftOut
        Rewrites, with reasons.
    replaced : list of ReplacedSchedule
        Kernels that lost their schedules, with reasons.
    """

    plan: Plan
    built: Built
    error: float
    left_out: list[LeftOut] = field(default_factory=list)
    replaced: list[ReplacedSchedule] = field(default_factory=list)


@dataclass
class PlanSearch:
    """A search for a plan that works.

    Parameters
    ----------
    build : callable
        Builds a plan; may raise any exception.
    error_of : callable
        Gives the error of a build's outputs.
    fault_of : callable
        Gives the exception that compiling a kernel alone at a level raises, or None.
    plain : callable
        Gives the level of each kernel by default schedules alone (`KernelSchedules.plain`).
    bound : float
        The largest error that is accepted.
    say : callable
        Gets lines about the progress of the search.
    """

    build: Callable[[Plan], Built]
    error_of: Callable[[Built], float]
    fault_of: Callable[[str, Level], Exception | None]
    plain: Callable[[], dict[str, Level]]
    bound: float
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
        plan, built = self._buildable(plan)
        error = self.error_of(built)
        if not self._is_right(error):
            self.say(f"outputs are {error:.1e} off; looking for the cause")
            bare = Plan(plan.levels, frozenset())
            if self._is_wrong(bare):
                levels = self._right_levels(plan)
                plan = Plan(levels, plan.rewrites)
            plan = self._right_rewrites(plan)
            plan, built = self._buildable(plan)
            error = self.error_of(built)
        return WorkingPlan(plan, built, error, self.left_out, self.replaced)

    @cached_property
    def _plain(self) -> dict[str, Level]:
        return self.plain()

    def _is_right(self, error: float) -> bool:
        # NaN is not right.
        return error <= self.bound

    def _is_wrong(self, plan: Plan) -> bool:
        """Whether a plan's outputs are wrong, or it does not build."""
        try:
            return not self._is_right(self.error_of(self.build(plan)))
        except Exception:  # noqa: BLE001 (a part of a model may fail in any way)
            return True

    def _buildable(self, plan: Plan) -> tuple[Plan, Built]:
        """A plan that builds, without the rewrite or the schedules that raise."""
        try:
            return plan, self.build(plan)
        except Exception as fault:  # noqa: BLE001 (an option must not stop a compilation)
            first = fault
        self.say(f"the library does not build ({kind_and_line(first)}); looking for the cause")
        for rewrite in REWRITES:
            if rewrite not in plan.rewrites:
                continue
            without = Plan(plan.levels, plan.rewrites - {rewrite})
            try:
                built = self.build(without)
            except Exception:  # noqa: BLE001 (then it is not this rewrite alone)
                continue
            self.left_out.append(LeftOut(what=rewrite, reason=kind_and_line(first)))
            return without, built
        levels = {name: self._compiling_level(name, level) for name, level in plan.levels.items()}
        try:
            plan = Plan(levels, plan.rewrites)
            return plan, self.build(plan)
        except Exception as fault:  # noqa: BLE001 (as above)
            first = fault
        # Several rewrites are at fault: leave out all of them.
        self.left_out += [
            LeftOut(what=rewrite, reason=kind_and_line(first))
            for rewrite in REWRITES
            if rewrite in plan.rewrites
        ]
        plan = Plan(levels, frozenset())
        try:
            return plan, self.build(plan)
        except Exception as fault:  # noqa: BLE001 (as above)
            self._replace(levels, list(levels), self._plain, kind_and_line(fault))
        plan = Plan(levels, frozenset())
        return plan, self.build(plan)

    def _compiling_level(self, name: str, level: Level) -> Level:
        """The first level at which a kernel compiles alone, beginning with its own."""
        fault = self.fault_of(name, level)
        if fault is None:
            return level
        wanted = self._plain[name]
        if level < wanted and self.fault_of(name, wanted) is not None:
            wanted = Level.UNSCHEDULED
        self._note(name, wanted, kind_and_line(fault))
        return wanted

    def _right_levels(self, plan: Plan) -> dict[str, Level]:
        """The plan's levels, changed for kernels that compute wrong results."""
        names = sorted(plan.levels)
        base, levels = dict(self._plain), dict(plan.levels)
        if self._is_wrong(Plan(base, frozenset())):
            nothing = dict.fromkeys(names, Level.UNSCHEDULED)
            if self._is_wrong(Plan(nothing, frozenset())):
                # No schedule is to blame.
                return levels
            for name in self._wrong_kernels(names, base, nothing):
                base[name] = Level.UNSCHEDULED
        for _ in names:
            wrong = self._wrong_kernels(names, levels, base)
            if not wrong:
                break
            self._replace(levels, wrong, base, "wrong output")
        return levels

    def _wrong_kernels(
        self, names: Sequence[str], levels: dict[str, Level], base: dict[str, Level]
    ) -> list[str]:
        """The kernels whose levels make outputs wrong; the other kernels have those of ``base``."""
        differing = [name for name in names if levels[name] != base[name]]

        def is_wrong(some: Sequence[str]) -> bool:
            chosen = {**base, **{name: levels[name] for name in some}}
            return self._is_wrong(Plan(chosen, frozenset()))

        return find_by_halves(differing, is_wrong)

    def _right_rewrites(self, plan: Plan) -> Plan:
        """The plan without the rewrites that make outputs wrong."""
        if not plan.rewrites or not self._is_wrong(plan):
            return plan
        kept = plan.rewrites
        for rewrite in REWRITES:
            if rewrite in kept and not self._is_wrong(Plan(plan.levels, kept - {rewrite})):
                self.left_out.append(LeftOut(what=rewrite, reason="wrong output"))
                return Plan(plan.levels, kept - {rewrite})
        self.left_out += [
            LeftOut(what=rewrite, reason="wrong output") for rewrite in REWRITES if rewrite in kept
        ]
        return Plan(plan.levels, frozenset())

    def _replace(
        self, levels: dict[str, Level], names: Sequence[str], base: dict[str, Level], reason: str
    ) -> None:
        for name in names:
            if levels[name] != base[name]:
                levels[name] = base[name]
                self._note(name, base[name], reason)

    def _note(self, name: str, level: Level, reason: str) -> None:
        self.say(f"{name}: {reason}; its schedule is now: {level.text}")
        self.replaced.append(ReplacedSchedule(kernel=name, schedule=level.text, reason=reason))

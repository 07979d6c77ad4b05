"""The schedules of every kernel of a model: from the log, by default, or none."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from functools import cache

from fewtune.errors import last_line
from fewtune.process.optional_steps import OptionalSteps
from fewtune.runtime.executable import IS_SCHEDULED
from fewtune.runtime.tvm import ms, tvm
from fewtune.schedule.defaults import apply_default_schedules
from fewtune.storage.database import best_trials
from fewtune.task.extract import Task, kernels
from fewtune.task.weight_layout import FREE

# Optional steps: all schedules of the log, and all default schedules.
TUNED, DEFAULTS = "tuned_schedules", "default_schedules"


def by_default(kernel: str) -> str:
    """The optional step that schedules a kernel by default where its own schedule is left out."""
    return f"default schedule of {kernel}"


class Level(IntEnum):
    """How a kernel is scheduled; a higher level is plainer."""

    LOG = 0
    DEFAULT = 1
    # The default schedule, with weights in the order of the model.
    PLAIN_DEFAULT = 2
    UNSCHEDULED = 3

    @property
    def text(self) -> str:
        return ("from the log", "default", "default, weights as given", "unscheduled")[self]


class KernelSchedules:
    """The kernels of a model at each level.

    Parameters
    ----------
    lowered : IRModule
    tasks : list of Task
    database : Database
        The tuning log.
    target : Target

    Attributes
    ----------
    workloads : dict of str
        By kernel.
    levels : dict of Level
        The level that each kernel is to have; it is plainer where there is no such schedule.
    failed : dict of str
        By kernel, the reason why its schedule in the log cannot be applied.
    """

    def __init__(
        self,
        lowered: tvm.IRModule,
        tasks: list[Task],
        database: ms.database.Database,
        target: tvm.target.Target,
    ) -> None:
        self._lowered = lowered
        self._target = target
        self.workloads = dict(sorted(kernels(lowered).items()))
        best: dict[str, tvm.tirx.PrimFunc | None] = {}
        faults: dict[str, str] = {}
        for task in tasks:
            try:
                best[task.info.workload] = _best(task, database)
            except Exception as fault:  # noqa: BLE001 (a record must not stop a compilation)
                faults[task.info.workload] = last_line(fault)
        each = self.workloads.items()
        self._tuned = {name: _named(made, name) for name, w in each if (made := best.get(w))}
        self.failed = {name: faults[workload] for name, workload in each if workload in faults}
        self._default_at = cache(self._made_at)
        self.levels = {n: Level.LOG if n in self._tuned else Level.DEFAULT for n in self.workloads}

    def scheduled(self, name: str) -> tvm.tirx.PrimFunc:
        """A kernel at its level."""
        made = self._at(name, self.levels[name])
        return self._lowered[name] if made is None else made

    def take(self, name: str, made: tvm.tirx.PrimFunc) -> None:
        """Schedule a kernel as given, in place of its schedule in the log."""
        self._tuned[name] = _named(made, name)
        self.levels[name] = Level.LOG

    def levels_with(self, steps: OptionalSteps) -> dict[str, Level]:
        """How each kernel is scheduled; its own schedule is the step of its name."""
        found = {}
        for name, level in self.levels.items():
            if not steps.uses(name):
                has_default = steps.uses(by_default(name))
                level = Level.PLAIN_DEFAULT if has_default else Level.UNSCHEDULED
            elif not steps.uses(TUNED):
                level = max(level, Level.DEFAULT)
            if level != Level.LOG and not steps.uses(DEFAULTS):
                level = Level.UNSCHEDULED
            found[name] = Level.UNSCHEDULED if self._at(name, level) is None else level
        return found

    def module(self, levels: Mapping[str, Level]) -> tvm.IRModule:
        """The model with every kernel scheduled at a level of `levels_with`."""
        functions = dict(self._lowered.functions_items())
        for name, level in levels.items():
            functions[self._lowered.get_global_var(name)] = self._at(name, level)
        return tvm.IRModule(functions, attrs=self._lowered.attrs)

    def _at(self, name: str, level: Level) -> tvm.tirx.PrimFunc | None:
        """A kernel at a level; None if there is no such schedule."""
        return self._tuned[name] if level == Level.LOG else self._default_at(name, level)

    def _made_at(self, name: str, level: Level) -> tvm.tirx.PrimFunc | None:
        function = self._lowered[name]
        if level != Level.DEFAULT and FREE in (function.attrs or {}):
            function = function.without_attr(FREE)
        if level == Level.UNSCHEDULED:
            return function
        alone = tvm.IRModule({name: function})
        made = apply_default_schedules(alone, [name], self._target)[name]
        return made if (made.attrs or {}).get(IS_SCHEDULED, False) else None


def _named(made: tvm.tirx.PrimFunc, name: str) -> tvm.tirx.PrimFunc:
    """A scheduled kernel under the name that the model has for it."""
    return made.with_attr("global_symbol", name).with_attr(IS_SCHEDULED, True)


def _best(task: Task, database: ms.database.Database) -> tvm.tirx.PrimFunc | None:
    """The schedule of the best record; None without a record."""
    records = best_trials(database, task.mod, 1)
    if not records:
        return None
    schedule = tvm.s_tir.Schedule(task.mod)
    records[0].trace.apply_to_schedule(schedule, remove_postproc=False)
    return schedule.mod["main"]

"""Measure default schedules: a searched schedule has to beat its task's default."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from fewtune.measure.measurer import Measurer, module_specs
from fewtune.runtime.tvm import tvm
from fewtune.schedule.defaults.default import default_schedule
from fewtune.trial.trial import Trial, trace_key
from fewtune.tuning.task_state import TaskState

_A_BATCH = 16


def measured_defaults(
    measurer: Measurer,
    target: tvm.target.Target,
    states: Sequence[TaskState],
    announce: Callable[[TaskState], None],
) -> Iterator[tuple[TaskState, Trial | None]]:
    """Measure the default schedules of tasks, a few at a time.

    Parameters
    ----------
    measurer : Measurer
    target : Target
    states : sequence of TaskState
    announce : callable
        Notes which task comes next.

    Yields
    ------
    state : TaskState
    trial : Trial or None
        None if no default schedule can be made.
    """
    for start in range(0, len(states), _A_BATCH):
        batch: list[tuple[TaskState, tvm.s_tir.Schedule]] = []
        for state in states[start : start + _A_BATCH]:
            announce(state)
            schedule = default_schedule(state.task.mod, target)
            if schedule is None:
                yield state, None
            else:
                batch.append((state, schedule))
        outcomes = measurer.measure(
            [schedule.mod for _, schedule in batch],
            [module_specs(state.task.mod) for state, _ in batch],
            [None] * len(batch),
            races=[state.task.info.name for state, _ in batch],
            keys=[(state.task.info.workload, trace_key(sch.trace)) for state, sch in batch],
            checks=[state.check._replace(is_default=True) for state, _ in batch],
        )
        for (state, schedule), outcome in zip(batch, outcomes, strict=True):
            yield state, Trial.of(schedule, outcome)

"""Trials of earlier versions, whose outputs were never compared: checked before their use.

Their times are valid. The outputs of each task's fastest trials are compared; the other trials are
not used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fewtune.measure.measurer import Measurer
from fewtune.runtime.tvm import tvm
from fewtune.storage.database import replay
from fewtune.trial.outcome import WRONG_OUTPUT
from fewtune.trial.trial import Trial
from fewtune.tuning.task_state import TaskState

# So many right trials of a task are looked for, to leave a choice for duels and finals.
_WANTED = 4
# At most so many trials of a task are built for that.
_MOST = 16
_CHUNK = 4


def checked(
    measurer: Measurer,
    target: tvm.target.Target,
    states: Iterable[TaskState],
    announce: Callable[[TaskState], None],
    note: Callable[[TaskState, dict[str, str]], None],
) -> None:
    """Check the fastest trials that were not checked yet, of each task.

    Parameters
    ----------
    measurer : Measurer
    target : Target
    states : iterable of TaskState
    announce : callable
        Notes which task comes next.
    note : callable
        Takes a task and the fault of each checked trial by trace; empty if it is right.
    """
    for state in states:
        looked_at = 0
        while state.unchecked() and looked_at < _MOST and _right(state) < _WANTED:
            announce(state)
            trials = state.unchecked()[:_CHUNK]
            looked_at += len(trials)
            note(state, _faults(measurer, target, state, trials))


def _right(state: TaskState) -> int:
    """How many right trials are at least as fast as the first unchecked one."""
    first_s = state.unchecked()[0].outcome.median_s
    return sum(trial.outcome.median_s <= first_s for trial in state.ranked())


def _faults(
    measurer: Measurer, target: tvm.target.Target, state: TaskState, trials: list[Trial]
) -> dict[str, str]:
    faults, modules, keys = {}, [], []
    with measurer.phases.timed("build_s"):
        for trial in trials:
            try:
                modules.append(replay(state.task.mod, trial, target).mod)
                keys.append(trial.key)
            except Exception as fault:  # noqa: BLE001 (TVM refuses traces in many ways)
                faults[trial.key] = f"its trace does not apply ({type(fault).__name__})"
    failures = measurer.check(modules, [state.check] * len(modules))
    for key, failure in zip(keys, failures, strict=True):
        faults[key] = "" if failure is None else failure.message or WRONG_OUTPUT
    return faults

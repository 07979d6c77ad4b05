"""Trials of earlier versions, which compared no candidate with anything: checked before their use.

Their times hold. Whether they compute what their tasks do is found out for the fastest of every
task; the others take no further part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fewtune.measure.measurer import Measurer
from fewtune.runtime.tvm import tvm
from fewtune.storage.database import replay
from fewtune.trial.outcome import WRONG_OUTPUT
from fewtune.trial.trial import Trial
from fewtune.tuning.task_state import TaskState

# Of a task: so many have to be right, that there is a choice for duels and finals, ...
_WANTED = 4
# ... and no more are built for it.
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
        Notes which task is about to be worked on.
    note : callable
        Takes a task and, by trace, what is wrong with its trials; empty where nothing is.
    """
    for state in states:
        looked_at = 0
        while state.unchecked() and looked_at < _MOST and _right(state) < _WANTED:
            announce(state)
            trials = state.unchecked()[:_CHUNK]
            looked_at += len(trials)
            note(state, _faults(measurer, target, state, trials))


def _right(state: TaskState) -> int:
    """Trials that are right and faster than any that nobody checked."""
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
            except Exception as fault:  # noqa: BLE001 (whatever a trace is refused for)
                faults[trial.key] = f"its trace does not apply ({type(fault).__name__})"
    failures = measurer.check(modules, [state.check] * len(modules))
    for key, failure in zip(keys, failures, strict=True):
        faults[key] = "" if failure is None else failure.message or WRONG_OUTPUT
    return faults

"""When to stop a run, or the search of a task: no visible gain was made or is expected."""

from __future__ import annotations

from fewtune.options import TuneOptions
from fewtune.tuning.run_state import RunState
from fewtune.tuning.task_state import TaskState

# The part of its time that a run has to gain within its patience; the same for a task.
_GAIN_OF_RUN, _GAIN_OF_TASK = 0.005, 0.01


class Patience:
    """Decides when to stop, by the options and the measurements.

    Parameters
    ----------
    options : TuneOptions
    state : RunState
    covered : float
        Part of the model's estimated time that the tasks, and those they stand for, make up.
    """

    def __init__(self, options: TuneOptions, state: RunState, covered: float) -> None:
        self._options = options
        self._state = state
        self._covered = covered

    @property
    def limits(self) -> list[float | None]:
        """The options that decide whether a run has converged."""
        options = self._options
        return [
            options.least_gain,
            options.early_stopping_trials,
            options.run_early_stopping_trials,
        ]

    def is_done(self, total_trials: int) -> bool:
        """Whether the journal is of a run that ended under this budget."""
        state, budget_s = self._state, self._options.budget_s
        if state.stopped_by is None:
            return False
        if state.stopped_by == "converged" and state.patience == self.limits:
            return True
        is_late = budget_s is not None and state.elapsed_s >= budget_s
        return is_late or state.trials >= total_trials

    def is_worth_it(self, gain_s: float) -> bool:
        """Whether the expected saving of a batch is a visible part of the model's time.

        The time of the session's tasks, and of those they stand for, is known. The whole is
        estimated from the part that they cover.
        """
        known = [state.progress for state in self._state.tasks.values()]
        whole_s = sum(
            progress.stands_for * progress.share_s
            for progress in known
            if progress.current_s != float("inf")
        )
        least_s = self._options.least_gain * whole_s / max(self._covered, 1e-3)
        return gain_s == float("inf") or gain_s >= least_s

    def has_run_converged(self) -> bool:
        """Whether the estimated latency has not improved within the patience of a run."""
        patience = self._options.run_early_stopping_trials
        state, curve = self._state, self._state.curve
        if patience is None or not curve or any(not state.tasks[n].trials for n in state.tuned):
            return False
        earlier = [point for point in curve if point.trials <= state.trials - patience]
        if not earlier:
            return False
        bar_ms = (1 - _GAIN_OF_RUN) * earlier[-1].estimated_latency_ms
        return curve[-1].estimated_latency_ms > bar_ms

    def ends(self, task: TaskState) -> str | None:
        """Why a task gets no further batch; None if it may get one."""
        patience = self._options.early_stopping_trials
        if patience is None or task.progress.finished:
            return None
        earlier = task.trials[: max(0, len(task.trials) - patience)]
        before_s = min((trial.outcome.median_s for trial in earlier), default=float("inf"))
        if before_s == float("inf") or task.best_s <= before_s * (1 - _GAIN_OF_TASK):
            return None
        return f"no {100 * _GAIN_OF_TASK:.0f} % gain in {patience} trials"

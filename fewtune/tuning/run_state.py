"""The state of a tuning run, which is rebuilt from its journal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fewtune.artifacts import CurvePoint, StoppedBy
from fewtune.errors import JournalError
from fewtune.progress.progress import Snapshot
from fewtune.storage.journal import Journal
from fewtune.task.extract import Task
from fewtune.trial.phases import Phases
from fewtune.trial.trial import Trial
from fewtune.tuning.final import Final
from fewtune.tuning.task_scheduler import TaskProgress
from fewtune.tuning.task_state import PriorResult, TaskState

# The name of the rounds that measure all of a model.
IN_MODEL = "in the model"


class RunState:
    """All tasks of a run, and its elapsed time.

    Parameters
    ----------
    tasks : list of Task
        Every task whose default schedule is measured.
    tuned : list of str
        Names of the tasks to search.
    earlier : dict of PriorResult, optional
        Results of earlier sessions, by task.
    starts : dict of Trial, optional
        By task, a schedule that was predicted; None for a default one.
    """

    def __init__(
        self,
        tasks: list[Task],
        tuned: list[str],
        earlier: dict[str, PriorResult] | None = None,
        starts: Mapping[str, Trial | None] | None = None,
    ) -> None:
        self.tasks = {task.info.name: TaskState(task, TaskProgress.of(task.info)) for task in tasks}
        for name, found in (earlier or {}).items():
            self.tasks[name].go_on_from(found)
        for name, start in (starts or {}).items():
            if name in self.tasks:
                self.tasks[name].start = start
        # Why nothing is measured in the model.
        self.note = ""
        # The model's seconds, once it was measured as a whole.
        self.latency_s: float | None = None
        self.tuned = tuned
        self.curve: list[CurvePoint] = []
        self.phases = Phases()
        self.elapsed_s, self.stolen_s = 0.0, 0.0
        self.resumed_trials = 0
        self.stopped_by: StoppedBy | None = None
        # What a finished run took for too small a gain.
        self.least_gain: float | None = None

    def resume(self, journal: Journal) -> None:
        """Take in the events of a journal.

        Raises
        ------
        JournalError
            If this version does not know one of them.
        """
        try:
            self.replay(journal.events)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise JournalError(
                f"{journal.path} holds an event that this version does not know "
                f"({type(error).__name__}: {error}); move it away to start anew"
            ) from None

    def replay(self, events: list[dict[str, Any]]) -> None:
        """Take in the events of a journal, oldest first."""
        for event in events:
            self.take(event)
        self.resumed_trials = self.trials

    def take(self, event: dict[str, Any]) -> None:
        """Take in one event of the journal."""
        kind = event["kind"]
        self.elapsed_s = event.get("elapsed_s", self.elapsed_s)
        self.stolen_s = event.get("stolen_s", self.stolen_s)
        if "phases" in event:
            self.phases.add(Phases(**event["phases"]))
        if kind == "finish":
            self.stopped_by = event["stopped_by"]
            self.least_gain = event.get("least_gain")
        if kind == "round":
            self._take_round(event)
        if kind == "no_model":
            self.note = event["note"]
        state = self.tasks.get(event.get("task", ""))
        if state is not None:
            self._take_of(state, event)
            if kind in ("default", "batch"):
                self._mark_curve()

    def _take_round(self, event: dict[str, Any]) -> None:
        """Take in a round of sharing."""
        for name, entries in event["by_task"].items():
            for entry in entries:
                self.tasks[name].add(Trial.from_json(entry))
                self.tasks[name].times_s.append(self.elapsed_s)
            self.tasks[name].progress.trials = len(self.tasks[name].trials)
            if name not in event["finals"]:
                # Nothing worked: that is a round without a gain.
                self.tasks[name].gains.append(0.0)
        for name, key in event["defaults"].items():
            self.tasks[name].default = self.tasks[name].default or Trial(key, None, None)
        finals = {name: Final.from_json(each) for name, each in event["finals"].items()}
        for name, final in finals.items():
            self.tasks[name].take_final(final)
        before_s = sum(final.time_s(0) for final in finals.values()) + event["rest_s"]
        after_s = sum(final.time_s(final.chosen) for final in finals.values()) + event["rest_s"]
        if event["round"] == IN_MODEL and finals:
            # Only what was measured in turns is compared: a machine changes from round to round.
            if self.latency_s is None:
                self.latency_s = before_s
                self._mark_curve()
            self.latency_s *= after_s / before_s
        self._mark_curve()

    def _take_of(self, state: TaskState, event: dict[str, Any]) -> None:
        """Take in one event of a task."""
        kind = event["kind"]
        if kind == "default":
            state.default = Trial.from_json(event["trial"])
            median_s = state.default.outcome.median_s
            state.progress.default_s = median_s if state.default.run_s else None
        elif kind == "batch":
            for entry in event["trials"]:
                state.add(Trial.from_json(entry))
                state.times_s.append(self.elapsed_s)
            state.spent_s += sum(event["phases"].values())
            state.progress.trials = len(state.trials)
            state.progress.best_s.append(state.best_s)
        elif kind == "end":
            state.progress.finished = event["why"]
        elif kind == "crash":
            state.crashed = event["signal"]
            state.progress.finished = "crashed"

    @property
    def trials(self) -> int:
        """Trials so far, default schedules not counted."""
        return sum(len(state.trials) for state in self.tasks.values())

    @property
    def estimated_latency_s(self) -> float | None:
        """Sum of weight times best known latency, once every task has one."""
        if self.latency_s is not None:
            return self.latency_s
        states = self.tasks.values()
        if any(s.default is None and not s.known and not s.gains for s in states):
            return None
        return self.known_latency_s

    @property
    def known_latency_s(self) -> float:
        """The sum over the tasks that have a latency."""
        own = [s.progress for s in self.tasks.values() if not s.task.info.is_of_other_shape]
        known = [progress for progress in own if progress.current_s != float("inf")]
        return sum(progress.weight * progress.current_s for progress in known)

    def without_default(self) -> list[TaskState]:
        """Tasks whose default schedule is still to be measured."""
        return [
            state
            for state in self.tasks.values()
            if not (state.default or state.earlier or state.crashed)
        ]

    def snapshot(
        self,
        state: TaskState,
        phase: str,
        trials_total: int,
        elapsed_s: float,
        budget_s: float | None,
        failures: dict[str, int],
    ) -> Snapshot:
        """The state of the run after a batch of a task.

        Parameters
        ----------
        state : TaskState
        phase : str
        trials_total : int
            Trials that the budget allows.
        elapsed_s : float
        budget_s : float or None
            Seconds that the whole run may take.
        failures : dict of int
            Failed candidates by cause.
        """
        left_s = elapsed_s / max(1, self.trials) * max(0, trials_total - self.trials)
        if budget_s is not None:
            left_s = min(left_s, max(0.0, budget_s - elapsed_s))
        default_s, best_s = state.progress.default_s, state.best_s
        estimate_s = self.estimated_latency_s
        return Snapshot(
            phase=phase,
            task=state.task.info.name,
            detail=state.task.info.shapes_text,
            trials=self.trials,
            trials_total=trials_total,
            task_trials=len(state.trials),
            default_ms=default_s * 1e3 if default_s else None,
            best_ms=best_s * 1e3 if best_s != float("inf") else None,
            estimated_latency_ms=estimate_s * 1e3 if estimate_s is not None else None,
            elapsed_s=elapsed_s,
            left_s=left_s,
            failures=dict(sorted(failures.items())),
        )

    def _mark_curve(self) -> None:
        estimate_s = self.estimated_latency_s
        if estimate_s is not None:
            self.curve.append(self._point(estimate_s))

    def _point(self, estimate_s: float) -> CurvePoint:
        """A point of the curve, now."""
        return CurvePoint(
            elapsed_s=round(self.elapsed_s, 3),
            trials=self.trials,
            estimated_latency_ms=estimate_s * 1e3,
        )

"""The state of one task in a tuning run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from fewtune.artifacts import TunedTask, TuneStatus
from fewtune.runtime.tvm import tvm
from fewtune.schedule_check.check import ScheduleCheck
from fewtune.task.extract import Task
from fewtune.trial.trial import Trial
from fewtune.tuning.final import Final
from fewtune.tuning.task_scheduler import TaskProgress


class PriorResult(NamedTuple):
    """The result of an earlier session for a task that this one continues.

    Attributes
    ----------
    trials : list of Trial
        The valid ones, fastest first; at least one.
    default : Trial or None
        The default schedule, measured.
    finished : str or None
        Why the task gets no further batch.
    """

    trials: list[Trial]
    default: Trial | None = None
    finished: str | None = None


# A candidate that takes this many times the winner's time takes part in no decision.
_NEVER_WINS = 1.2


def crash_text(ended_by: str) -> str:
    """That a signal, or an exception in a line, ended the work on a task."""
    return f"its search crashed ({ended_by})"


@dataclass
class TaskState:
    """One task of a run.

    Attributes
    ----------
    task : Task
    progress : TaskProgress
    trials : list of Trial
        In the order they were measured.
    earlier : list of Trial
        Valid trials of an earlier session that this one continues.
    known : dict
        All these trials by their keys.
    times_s : list of float
        For each trial, seconds from the run's start until its result.
    default : Trial or None
        The default schedule, measured.
    start : Trial or None
        A schedule that was predicted, or that a bank holds of this very task: its outputs were
        checked, and it was not measured in this run.
    finals_s : dict
        Seconds of one call where it was measured in turns with others, by key.
    chosen : str or None
        The key of the fastest of these.
    gains : list of float
        By round, the part of its time that the task saved.
    spent_s : float
    crashed : str or None
        The signal, or the exception, that ended the work on this task.
    """

    task: Task
    progress: TaskProgress
    trials: list[Trial] = field(default_factory=list)
    earlier: list[Trial] = field(default_factory=list)
    known: dict[str, Trial] = field(default_factory=dict)
    times_s: list[float] = field(default_factory=list)
    default: Trial | None = None
    start: Trial | None = None
    finals_s: dict[str, float] = field(default_factory=dict)
    chosen: str | None = None
    gains: list[float] = field(default_factory=list)
    spent_s: float = 0.0
    crashed: str | None = None

    def go_on_from(self, earlier: PriorResult) -> None:
        """Continue from the result of an earlier session."""
        self.earlier, self.default = earlier.trials, earlier.default
        self.known.update((trial.key, trial) for trial in earlier.trials)
        progress = self.progress
        progress.default_s = self.default.outcome.median_s if self.default is not None else None
        progress.best_s = [self.best_s]
        progress.finished = earlier.finished

    @cached_property
    def check(self) -> ScheduleCheck:
        """The check of candidates' outputs."""
        return ScheduleCheck(self.task.info.workload, tvm.ir.save_json(self.task.mod))

    def add(self, trial: Trial) -> None:
        """Take in a measured trial."""
        self.trials.append(trial)
        self.known[trial.key] = trial

    @property
    def crash_note(self) -> str:
        """What ended the work on this task, for reports; empty if nothing did."""
        return crash_text(self.crashed) if self.crashed else ""

    @property
    def best_s(self) -> float:
        """Seconds of the fastest schedule but the default; infinite without a valid one."""
        return min((trial.outcome.median_s for trial in self._searched()), default=float("inf"))

    def _measured(self) -> list[Trial]:
        """All valid trials but the default schedule."""
        return [each for each in [*self.earlier, *self.trials] if each.run_s]

    def _searched(self) -> list[Trial]:
        """The measured trials whose outputs were found right."""
        return [trial for trial in self._measured() if trial.is_checked]

    def ranked(self) -> list[Trial]:
        """Valid trials, fastest first, each with one figure: its median in seconds.

        The fastest in turns comes first. Then come the others of those rounds, by their last times.
        The rest follow: they were slower in the race.
        """
        trials = self._searched()
        if self.default is not None and self.default.run_s and self.default.is_checked:
            trials.append(self.default)
        rated = []
        for place, trial in enumerate(trials):
            final_s = self.finals_s.get(trial.key)
            time_s = final_s if final_s is not None else trial.outcome.median_s
            order = (trial.key != self.chosen, final_s is None, time_s, place)
            rated.append((order, Trial(trial.key, [time_s], None)))
        return [trial for _, trial in sorted(rated, key=lambda entry: entry[0])]

    def published(self) -> list[Trial]:
        """The trials for TVM's database, fastest first.

        TVM takes the record with the least mean, and has to pick the same winner. So a trial stays
        out whose figure is below the winner's: it was fast by noise, or is slower in the model.
        Slow trials whose outputs were not compared are included. They never win, but cost models
        learn from them, and other tasks may try them.
        """
        ranked = self.ranked()
        if not ranked:
            return []
        bar_s = ranked[0].outcome.median_s
        slow_s = _NEVER_WINS * bar_s
        unchecked = [
            Trial(each.key, [each.outcome.median_s], None, is_checked=False)
            for each in self._measured()
            if not each.is_checked and each.outcome.median_s > slow_s
        ]
        unchecked.sort(key=lambda trial: trial.outcome.median_s)
        if self.finals_s or self.chosen:
            ranked = [trial for trial in ranked if trial.outcome.median_s >= bar_s]
        return [*ranked, *unchecked]

    @property
    def default_key(self) -> str | None:
        """The key of the default schedule, once it is known."""
        return self.default.key if self.default is not None else None

    @property
    def incumbent(self) -> Trial | None:
        """The schedule that the library has now; None for an unmeasured default schedule."""
        return next(iter(self.ranked()), self.start)

    def is_right(self, key: str) -> bool:
        """Whether a schedule's outputs are known to be right: a default one's are the reference."""
        trusted = [self.start, self.default, *self._searched()]
        return any(each is not None and each.key == key for each in trusted)

    def take_final(self, final: Final) -> None:
        """Take in schedules that were measured in turns."""
        keys, chosen = final.keys, final.chosen
        times_s = [final.time_s(place) / self.progress.weight for place in range(len(keys))]
        before_s = times_s[0]
        # The machine may have another pace now: what is compared was measured in turns with the
        # first of these.
        pace = before_s / self.finals_s.get(keys[0], before_s)
        self.finals_s = {key: pace * time_s for key, time_s in self.finals_s.items()}
        self.finals_s.update(zip(keys, times_s, strict=True))
        for key, time_s in zip(keys, times_s, strict=True):
            if key == self.default_key:
                self.default = Trial(key, [time_s], None)
            elif self.start is not None and key == self.start.key and key not in self.known:
                self.known[key] = Trial(key, [time_s], None)
                self.earlier = [*self.earlier, self.known[key]]
        self.chosen = keys[chosen]
        self.gains.append(final.gain)
        self.progress.best_s.append(times_s[chosen])

    def failures(self) -> dict[str, int]:
        """Failed candidates by cause."""
        counts = Counter(trial.cause for trial in self.trials if trial.cause)
        return dict(sorted(counts.items()))

    def report(self) -> TunedTask:
        """The task's line in the tune stage's report."""
        best_s = min((t.outcome.median_s for t in self.ranked()[:1]), default=float("inf"))
        default_s = None
        if self.default is not None and self.default.run_s:
            default_s = self.finals_s.get(self.default.key, self.default.outcome.median_s)
        status: TuneStatus
        if self.crashed:
            status = "crashed"
        elif self.best_s != float("inf"):
            status = "tuned"
        elif self._measured():
            status = "slower_than_default"
        else:
            status = "no_valid_schedule" if self.trials else "not_reached"
        return TunedTask(
            task=self.task.info.name,
            status=status,
            trials=len(self.trials),
            tuning_s=round(self.spent_s, 3),
            default_ms=default_s * 1e3 if default_s is not None else None,
            best_ms=best_s * 1e3 if best_s != float("inf") else None,
            failures=self.failures(),
            note=self.crash_note or self.progress.finished or "",
        )

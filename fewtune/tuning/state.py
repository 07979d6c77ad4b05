"""The state of a session and of its tasks, which is rebuilt from the journal; what it leaves."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fewtune.artifacts import CurvePoint, LogInfo, StoppedBy, TunedTask, TuneStatus, TuningStep
from fewtune.prediction.worth import UNKNOWN
from fewtune.runtime.target import target_from_json
from fewtune.runtime.tvm import tvm
from fewtune.schedule.space.design_space import Point
from fewtune.schedule.space.transfer import Donation
from fewtune.schedule_check.check import ScheduleCheck
from fewtune.storage.database import write_database
from fewtune.task.extract import Task
from fewtune.trial.outcome import WRONG_OUTPUT
from fewtune.trial.phases import Phases
from fewtune.trial.trial import Trial
from fewtune.tuning.final import Final
from fewtune.util.files import write_text

# Of a journal.
Event = dict[str, Any]
# For a report to TVM: each task's module as TVM JSON, and each schedule's trace, as in TVM's
# database, with its fault.
WRONG_SCHEDULES = "wrong_schedules.json"
# The names of the rounds.
IN_MODEL, ALONE = "in the model", "alone"
# A candidate that takes this many times the winner's time takes part in no decision.
_NEVER_WINS = 1.2
# The inner loops of these operators are the same product of a register tile, so that each may reach
# the throughput of the others.
_PRODUCTS = frozenset({"batch_matmul", "conv1d", "conv2d", "conv3d", "dense"})


@dataclass(frozen=True)
class Start:
    """What a session knows of a task before it measures anything.

    Attributes
    ----------
    trial : Trial or None
        A schedule that was predicted, or that a bank holds of this very task: its outputs were
        checked. None for the default schedule.
    spread : float
        The part of its time that another schedule may save.
    promising : list of Point
        The points that are rated best.
    seeds : list of Trial
        Those of older logs, which are measured again first.
    donors : dict of list of Donation
        Whose schedules it may take: those of a bank; empty for a task of this session.
    serves : float
        The part of the model's estimated time that its schedules serve.
    trials : list of Trial
        Valid ones of an earlier session that this one continues, fastest first.
    default_key : str or None
        The default schedule, if it was measured there.
    finished : str
        Why it gets no contenders.
    """

    trial: Trial | None = None
    spread: float = UNKNOWN
    promising: list[Point] = field(default_factory=list)
    seeds: list[Trial] = field(default_factory=list)
    donors: dict[str, list[Donation]] = field(default_factory=dict)
    serves: float = 0.0
    trials: list[Trial] = field(default_factory=list)
    default_key: str | None = None
    finished: str = ""


@dataclass
class TaskState:
    """One task of a session.

    Attributes
    ----------
    trials : list of Trial
        In the order they were measured.
    known : dict of Trial
        By key, everything measured, in earlier sessions, too.
    donors : dict of str
        Whose schedule each trial is, if it was another task's.
    default_key : str or None
        The default schedule, once it was looked for; empty where it has no trace.
    finals_s : dict of float
        By key, seconds of one call in turns with others.
    chosen : str or None
        The key of the fastest of these.
    gains : list of float
        By round, the part of its time that the task saved.
    """

    task: Task
    start: Start = field(default_factory=Start)
    trials: list[Trial] = field(default_factory=list)
    known: dict[str, Trial] = field(default_factory=dict)
    donors: dict[str, str | None] = field(default_factory=dict)
    default_key: str | None = None
    finals_s: dict[str, float] = field(default_factory=dict)
    chosen: str | None = None
    gains: list[float] = field(default_factory=list)
    promising: list[Point] = field(default_factory=list)
    finished: str = ""
    crashed: str = ""

    def __post_init__(self) -> None:
        self.known.update((trial.key, trial) for trial in self.start.trials)
        self.default_key, self.finished = self.start.default_key, self.start.finished

    @property
    def name(self) -> str:
        return self.task.info.name

    @property
    def weight(self) -> int:
        """Calls in the model; one of another shape does not occur in it as it is estimated."""
        return self.task.info.weight or 1

    @cached_property
    def check(self) -> ScheduleCheck:
        """The check of candidates' outputs."""
        return ScheduleCheck(self.task.info.workload, tvm.ir.save_json(self.task.mod))

    @property
    def kind(self) -> str:
        """Tasks of one kind may reach the same throughput."""
        info = self.task.info
        return f"product {bool(info.byte_flops)}" if info.operator in _PRODUCTS else info.operator

    @property
    def current_s(self) -> float:
        """Seconds of one call with the best known schedule; infinite if none is known."""
        if self.chosen is not None:
            return self.finals_s[self.chosen]
        return next((trial.outcome.median_s for trial in self.ranked()), float("inf"))

    def ranked(self) -> list[Trial]:
        """Valid trials, fastest first, each with one figure: its median in seconds.

        The fastest in turns comes first. Then come the others of those rounds, by their last times.
        The rest follow: they were slower in the race.
        """
        rated = []
        for key, trial in self.known.items():
            if trial.run_s and trial.is_checked:
                time_s = self.finals_s.get(key, trial.outcome.median_s)
                order = key != self.chosen, key not in self.finals_s, time_s
                rated.append((order, Trial(key, [time_s], None)))
        return [trial for _, trial in sorted(rated, key=lambda entry: entry[0])]

    def published(self) -> list[Trial]:
        """The trials for TVM's database, fastest first.

        TVM takes the record with the least mean, and has to pick the same winner. So a trial stays
        out whose figure is below the winner's: it was fast by noise, or is slower in the model.
        Slow trials whose outputs were not compared are included. They never win, but cost models
        learn from them, and other tasks may try them. What was never measured keeps its predicted
        schedule.
        """
        ranked = self.ranked()
        if not ranked:
            return [self.start.trial] if self.start.trial is not None and not self.crashed else []
        bar_s = ranked[0].outcome.median_s
        unchecked = [
            Trial(each.key, [each.outcome.median_s], None, is_checked=False)
            for each in self.known.values()
            if each.run_s and not each.is_checked and each.outcome.median_s > _NEVER_WINS * bar_s
        ]
        unchecked.sort(key=lambda trial: trial.outcome.median_s)
        return [*(each for each in ranked if each.outcome.median_s >= bar_s), *unchecked]

    @property
    def incumbent(self) -> Trial | None:
        """The schedule that the library has now; None for an unmeasured default schedule."""
        return next(iter(self.ranked()), self.start.trial)

    def is_right(self, key: str) -> bool:
        """Whether a schedule's outputs are known to be right: a default one's are the reference."""
        begun = [self.start.trial] if self.start.trial is not None else []
        return key in (self.default_key, *(trial.key for trial in [*begun, *self.ranked()]))

    def add(self, trial: Trial, donor: str | None = None) -> None:
        """Take in a measured trial."""
        self.trials.append(trial)
        self.known[trial.key], self.donors[trial.key] = trial, donor

    def take_final(self, final: Final) -> None:
        """Take in schedules that were measured in turns."""
        keys, chosen = final.keys, final.chosen
        times_s = [final.time_s(place) / self.weight for place in range(len(keys))]
        before_s = times_s[0]
        # The machine may have another pace now: what is compared was measured in turns with the
        # first of these.
        pace = before_s / self.finals_s.get(keys[0], before_s)
        self.finals_s = {key: pace * time_s for key, time_s in self.finals_s.items()}
        self.finals_s.update(zip(keys, times_s, strict=True))
        for key, time_s in zip(keys, times_s, strict=True):
            if key:
                # What was predicted, and the default schedule, are no trials.
                self.known.setdefault(key, Trial(key, [time_s], None))
        # What is gained over a default schedule says nothing of what can be gained next.
        gain = max(0.0, final.gain_s / final.time_s(0))
        self.gains.append(0.0 if keys[0] == self.default_key else gain)
        self.chosen = keys[chosen]

    def report(self) -> TunedTask:
        """The task's line in a report."""
        times_s = {trial.key: trial.outcome.median_s for trial in self.ranked()}
        default_s = times_s.pop(self.default_key or "", None)
        status: TuneStatus = "no_valid_schedule" if self.trials else "not_reached"
        if self.crashed:
            status = "crashed"
        elif times_s:
            status = "tuned"
        elif any(trial.run_s for trial in self.trials):
            status = "slower_than_default"
        return TunedTask(
            task=self.name,
            status=status,
            trials=len(self.trials),
            default_ms=in_ms(default_s),
            best_ms=in_ms(self.current_s),
            failures=dict(sorted(Counter(t.cause for t in self.trials if t.cause).items())),
            note=crash_text(self.crashed) if self.crashed else self.finished,
        )


def crash_text(ended_by: str) -> str:
    """That a signal, or an exception in a line, ended the work on a task."""
    return f"its search crashed ({ended_by})"


def in_ms(time_s: float | None) -> float | None:
    """Milliseconds; None if there is no such time."""
    return None if time_s in (None, float("inf")) else time_s * 1e3


class RunState:
    """All tasks of a session, and its elapsed time.

    Parameters
    ----------
    tasks : list of Task
    starts : dict of Start
        By task.
    events : iterable of dict
        Of the journal, oldest first.
    """

    def __init__(
        self, tasks: list[Task], starts: dict[str, Start], events: Iterable[Event] = ()
    ) -> None:
        states = [TaskState(task, starts.get(task.info.name, Start())) for task in tasks]
        self.tasks = {state.name: state for state in states}
        # Why nothing is measured in the model.
        self.note = ""
        # The model's seconds, once it was measured as a whole.
        self.latency_s: float | None = None
        self.curve: list[CurvePoint] = []
        # What the rounds of each name cost and gained.
        self.rounds: dict[str, TuningStep] = {}
        self.phases = Phases()
        self.elapsed_s, self.stolen_s = 0.0, 0.0
        self.stopped_by: StoppedBy = "nothing_to_tune"
        # The options by which it ended.
        self.budget: dict[str, Any] | None = None
        for event in events:
            self.take(event)

    def take(self, event: Event) -> None:
        """Take in one event of the journal."""
        kind, state = event["kind"], self.tasks.get(event.get("task", ""))
        self.elapsed_s = float(event.get("elapsed_s", self.elapsed_s))
        self.stolen_s = float(event.get("stolen_s", self.stolen_s))
        self.phases.add(Phases(**event.get("phases", {})))
        if kind == "finish":
            self.stopped_by, self.budget = event["stopped_by"], event.get("budget")
        elif kind == "round":
            self._take_round(event)
        elif kind == "no_model":
            self.note = str(event["note"])
        elif kind == "end" and state is not None:
            state.finished = event["why"]
        elif kind == "crash" and state is not None:
            state.crashed, state.finished = event["signal"], "crashed"

    def _take_round(self, event: Event) -> None:
        for name, key in event["defaults"].items():
            self.tasks[name].default_key = key
        for name, entries in event["by_task"].items():
            for entry, donor in zip(entries, event["donors"][name], strict=True):
                self.tasks[name].add(Trial.from_json(entry), donor)
            if name not in event["finals"]:
                # Nothing worked: that is a round without a gain.
                self.tasks[name].gains.append(0.0)
        finals = {name: Final(**each) for name, each in event["finals"].items()}
        for name, final in finals.items():
            self.tasks[name].take_final(final)
        held, phases = self.rounds.get(event["round"]), Phases(**event["phases"])
        held = held or TuningStep(name=event["round"])
        phases.add(held)
        self.rounds[held.name] = TuningStep(
            name=held.name,
            tasks=max(held.tasks, sum(len(final.keys) > 1 for final in finals.values())),
            trials=held.trials + sum(len(final.keys) - 1 for final in finals.values()),
            spent_s=round(phases.total_s(), 3),
            gained_ms=(held.gained_ms or 0.0) + sum(f.gain_s for f in finals.values()) * 1e3,
            **phases.as_json(),
        )
        before_s = sum(final.time_s(0) for final in finals.values()) + event["rest_s"]
        after_s = sum(final.time_s(final.chosen) for final in finals.values()) + event["rest_s"]
        if event["round"] == IN_MODEL and finals:
            # Only what was measured in turns is compared: a machine changes from round to round.
            if self.latency_s is None:
                self.latency_s = before_s
                self._mark_curve()
            self.latency_s *= after_s / before_s
        self._mark_curve()

    @property
    def trials(self) -> int:
        """Trials so far, default schedules not counted."""
        return sum(len(state.trials) for state in self.tasks.values())

    @property
    def estimated_latency_s(self) -> float | None:
        """Sum of weight times best known latency, once every task has one."""
        own = [state for state in self.tasks.values() if not state.task.info.is_of_other_shape]
        known = [state for state in own if state.current_s != float("inf")]
        if self.latency_s is not None or any(not s.gains for s in own if s not in known):
            return self.latency_s
        return sum(state.weight * state.current_s for state in known)

    def write(self, info: LogInfo, directory: Path) -> None:
        """Write the log of the session.

        Parameters
        ----------
        info : LogInfo
        directory : Path
            Gets ``log.json``, TVM's two database files, and `WRONG_SCHEDULES` if there are any.
        """
        info.write(directory)
        trials = {name: known.published() for name, known in sorted(self.tasks.items())}
        modules = {name: self.tasks[name].task.mod for name in trials if trials[name]}
        write_database(directory, modules, trials, target_from_json(info.target))
        wrong = {
            name: {
                "module": json.loads(tvm.ir.save_json(known.task.mod)),
                "schedules": [{"trace": each.trace, "fault": each.fault} for each in faulty],
            }
            for name, known in self.tasks.items()
            if (faulty := [each for each in known.known.values() if each.cause == WRONG_OUTPUT])
        }
        if wrong:
            text = json.dumps(wrong, indent=1, sort_keys=True)
            write_text(directory / WRONG_SCHEDULES, text + "\n")

    def _mark_curve(self) -> None:
        estimate_ms = in_ms(self.estimated_latency_s)
        if estimate_ms is not None:
            self.curve.append(
                CurvePoint(
                    elapsed_s=round(self.elapsed_s, 3),
                    trials=self.trials,
                    estimated_latency_ms=estimate_ms,
                )
            )

"""The tuning loop: it owns searches, workers, journal and cost models, and resumes after a kill.

Every measurement is in the journal before the next batch begins. A session that is opened on a
journal takes over its trials: they are not built again, the cost models learn from them, and each
search starts from the best of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fewtune.machine.host import stolen_s
from fewtune.measure.measurer import module_specs
from fewtune.options import TuneOptions
from fewtune.predictor import AUTO, learnt
from fewtune.predictor.predictor import predictor_for
from fewtune.predictor.pretrained import TaskSamples
from fewtune.process.ending import is_asked_to_end, listen
from fewtune.runtime.tvm import tvm
from fewtune.schedule.defaults import default_schedule
from fewtune.schedule.space.search_space import SearchSpace
from fewtune.search import Explorer, Knowledge, make_cost_model, make_strategy
from fewtune.search.warm_start import known_points
from fewtune.trial.phases import Phases
from fewtune.trial.trial import Trial, trace_key
from fewtune.tuning.batch import TaskBatch, measure_together, split_cost
from fewtune.tuning.job import SessionJob, Workplace
from fewtune.tuning.run_state import RunState
from fewtune.tuning.task_scheduler import best_rates, gradients, in_order
from fewtune.tuning.task_state import PriorResult, TaskState


@dataclass(frozen=True)
class TuneJob(SessionJob):
    """The work of a tuning session.

    Attributes
    ----------
    tuned : list of str
        Names of the tasks to search.
    options : TuneOptions
    seeds : dict of list of Trial
        Trials of older logs, by task: measured again before anything else.
    cold_weights : bool
        Whether measured calls find their weights in memory (`fewtune.timing.timer`).
    stands_for : dict of float, optional
        Share of the model's time that a task's schedules serve, over its own share.
    covered : float
        Part of the model's estimated time that the tasks, and those they stand for, make up.
    """

    tuned: list[str]
    options: TuneOptions
    seeds: dict[str, list[Trial]] = field(default_factory=dict)
    cold_weights: bool = False
    stands_for: dict[str, float] | None = None
    covered: float = 1.0

    def run(self, place: Workplace) -> None:
        """Tune."""
        Session(self, place).run()


class Searches:
    """Every task's search space and search.

    Parameters
    ----------
    target : Target
    options : TuneOptions
    knowledge : Knowledge
        The cost models, which all searches share.
    seeds : dict of list of Trial
        Trials of an older log, by task: measured again before anything else.
    """

    def __init__(
        self,
        target: tvm.target.Target,
        options: TuneOptions,
        knowledge: Knowledge,
        seeds: dict[str, list[Trial]],
    ) -> None:
        self.knowledge = knowledge
        self._target = target
        self._options = options
        self._seeds = seeds
        self._spaces: dict[str, SearchSpace] = {}
        self._searches: dict[str, Explorer] = {}

    def space_of(self, state: TaskState) -> SearchSpace:
        """The task's search space, generated once."""
        name = state.task.info.name
        if name not in self._spaces:
            self._spaces[name] = SearchSpace(state.task.mod, self._target)
        return self._spaces[name]

    def of(self, state: TaskState) -> Explorer:
        """The task's search; after a resumption it knows the trials of the journal."""
        name = state.task.info.name
        if name not in self._searches:
            space = self.space_of(state)
            search = make_strategy(
                space,
                self.knowledge,
                self._options,
                # Another seed after a resumption; the same would draw the first batch again.
                seed=1 + self._options.seed + 7919 * len(state.known),
            )
            search.remember(*known_points(space, state.trials))
            # Those that the journal holds already are not measured again.
            search.begin_from(known_points(space, self._seeds.get(name, []))[0])
            self._searches[name] = search
        return self._searches[name]

    def sampled(self) -> list[TaskSamples]:
        """What was measured of the tasks that the predictor knows."""
        # A guide takes a while to make.
        searches = [each for each in self._searches.values() if len(each.times_s) >= learnt.FEWEST]
        return [each.guide.sampled(each.times_s) for each in searches if each.guide is not None]


# Default schedules that are built together.
_A_BATCH = 16


class Session:
    """Tunes tasks. Every step is in a journal, from which a killed session resumes.

    Parameters
    ----------
    job : TuneJob
        Which tasks are searched, and how.
    place : Workplace
        The default schedules of all its tasks are measured.
    earlier : dict of PriorResult, optional
        Results of earlier sessions, by task: those tasks continue from there. The caller teaches
        them to the cost models.
    starts : dict of Trial, optional
        By task, a schedule that was predicted.
    clock : callable
        Monotonic seconds; tests give a fake one.
    """

    def __init__(
        self,
        job: TuneJob,
        place: Workplace,
        earlier: dict[str, PriorResult] | None = None,
        starts: Mapping[str, Trial | None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        options, device, cold_weights = job.options, place.device, job.cold_weights
        self.fingerprint = device.fingerprint
        predictor = predictor_for(options.predictor, place.target)
        # Trials of an earlier session of this run are taught by the caller.
        if options.predictor == AUTO and not earlier:
            own = (task.info.workload for task in place.tasks)
            learnt.teach(predictor, self.fingerprint, own)
        knowledge = Knowledge(make_cost_model(options.cost_model), predictor, cold_weights)
        self.journal, self.progress, self.target = place.journal, place.progress, place.target
        self.state = RunState(place.tasks, job.tuned, earlier, starts)
        self.state.resume(place.journal)
        self.measurer = device.measurer(place.pool, cold_weights=cold_weights)
        self._clock = clock
        self._began_s = clock() - self.state.elapsed_s
        self._unstolen_s = stolen_s() - self.state.stolen_s
        self.options = options
        self._covered = job.covered
        self._tasks_a_batch = device.parallel_tasks
        self.searches = Searches(place.target, options, knowledge, job.seeds)
        self._longest_batch_s = 0.0
        for name, times in (job.stands_for or {}).items():
            self.state.tasks[name].progress.stands_for = times

    @property
    def elapsed_s(self) -> float:
        """Seconds of tuning so far, those before an interruption included."""
        return self._clock() - self._began_s

    def announce(self, state: TaskState) -> None:
        """Note the task that comes next: a crash is then known to be its fault."""
        self.journal.append({"kind": "start", "task": state.task.info.name})

    def note(self, event: dict[str, Any]) -> None:
        """Journal an event, then take it in exactly as a resumed run would."""
        kept_s = stolen_s() - self._unstolen_s
        spent = {"elapsed_s": round(self.elapsed_s, 3), "stolen_s": round(kept_s, 3)}
        event = {**spent, **event}
        self.journal.append(event)
        self.state.take(event)

    def spent(self) -> dict[str, Any]:
        """The cost of a batch, for its event: seconds by phase."""
        phases, self.measurer.phases = self.measurer.phases, Phases()
        return {"phases": phases.as_json()}

    @property
    def total_trials(self) -> int:
        """Trials the budget allows."""
        return self.options.trials_per_task * len(self.state.tuned)

    def run(self) -> str:
        """Tune until the budget is spent; return what stopped the run."""
        if self.state.resumed_trials:
            self.progress.say(
                f"resuming: {self.state.resumed_trials} trials are in {self.journal.path}"
            )
        if self.is_done():
            return self.state.stopped_by or "nothing_to_tune"
        listen()
        stopped_by = self.search()
        self.conclude()
        learnt.keep(self.searches.sampled(), self.fingerprint)
        least = self.options.least_gain
        self.note({"kind": "finish", "stopped_by": stopped_by, "least_gain": least, **self.spent()})
        return stopped_by

    def is_done(self) -> bool:
        """Whether the journal is of a run that ended under this budget."""
        state, budget_s = self.state, self.options.budget_s
        if state.stopped_by is None:
            return False
        if state.stopped_by == "converged" and state.least_gain == self.options.least_gain:
            return True
        is_late = budget_s is not None and state.elapsed_s >= budget_s
        return is_late or state.trials >= self.total_trials

    def is_worth_it(self, gain_s: float) -> bool:
        """Whether the expected saving of a batch is a visible part of the model's time.

        The time of the session's tasks, and of those they stand for, is known. The whole is
        estimated from the part that they cover.
        """
        known = [state.progress for state in self.state.tasks.values()]
        whole_s = sum(
            progress.stands_for * progress.share_s
            for progress in known
            if progress.current_s != float("inf")
        )
        least_s = self.options.least_gain * whole_s / max(self._covered, 1e-3)
        return gain_s == float("inf") or gain_s >= least_s

    def conclude(self) -> None:
        """Do what follows the search."""

    def measure_defaults(self) -> None:
        """Measure the default schedules that are not known: a searched one has to be faster."""
        waiting = self.state.without_default()
        for start in range(0, len(waiting), _A_BATCH):
            able: list[tuple[TaskState, tvm.s_tir.Schedule]] = []
            for state in waiting[start : start + _A_BATCH]:
                self.announce(state)
                schedule = default_schedule(state.task.mod, self.target)
                if schedule is not None:
                    able.append((state, schedule))
                else:
                    self._note_default(state, Trial(trace_key(None), None, "no_default_schedule"))
            outcomes = self.measurer.measure(
                [schedule.mod for _, schedule in able],
                [module_specs(state.task.mod) for state, _ in able],
                [None] * len(able),
                races=[state.task.info.name for state, _ in able],
                checks=[state.check._replace(is_default=True) for state, _ in able],
            )
            for (state, schedule), outcome in zip(able, outcomes, strict=True):
                self._note_default(state, Trial.measured(trace_key(schedule.trace), outcome))
        if waiting:
            self.note({"kind": "phases", **self.spent()})

    def _note_default(self, state: TaskState, trial: Trial) -> None:
        self.note({"kind": "default", "task": state.task.info.name, "trial": trial.as_json()})

    def search(self) -> str:
        """Search until the budget is spent or nothing is gained; return the reason."""
        self.measure_defaults()
        if not self.state.tuned:
            return "nothing_to_tune"
        tuned = [self.state.tasks[name].progress for name in self.state.tuned]
        while True:
            if is_asked_to_end():
                return "interrupted"
            room = self.total_trials - self.state.trials
            if room <= 0:
                return "trials"
            budget_s = self.options.budget_s
            if budget_s is not None and self.elapsed_s + self._longest_batch_s / 2 >= budget_s:
                return "budget"
            rates = self.rates()
            waiting = in_order(tuned, self.options.allocation, rates)
            if not waiting:
                return "converged"
            gains_s = gradients(waiting, rates)
            if not self.is_worth_it(max(gains_s.values())):
                return "converged"
            first, *others = (self.state.tasks[t.name] for t in waiting[: self._tasks_a_batch])
            worth_it = [s for s in others if self.is_worth_it(gains_s[s.task.info.name])]
            began_s = self._clock()
            self.batch([first, *worth_it], room)
            self._longest_batch_s = max(self._longest_batch_s, self._clock() - began_s)

    def rates(self) -> dict[str, float]:
        """Highest measured throughput by operator family."""
        measured = [self.state.tasks[name].progress for name in self.state.tuned]
        return best_rates(measured, self.measurer.most_flops_s)

    def batch(self, states: list[TaskState], room: int) -> None:
        """Measure up to ``room`` candidates, of each task as many as the options allow.

        There are several tasks if several boards measure.
        """
        options, turns = self.options, list[TaskBatch]()
        for state in states:
            # The first batch of a task leaves room for the other tasks.
            most = options.batch_size if state.trials else options.trials_per_task
            self.announce(state)
            with self.measurer.phases.timed("search_s"):
                search = self.searches.of(state)
                proposed = search.next_batch(min(room, most, options.batch_size))
                turns.append(TaskBatch.of(state, proposed))
            room -= len(turns[-1].proposals)
            if room <= 0:
                break
        measured = measure_together(self.measurer, turns)
        parts = split_cost(self.spent(), [len(turn.proposals) for turn in turns])
        for turn, outcomes, spent in zip(turns, measured, parts, strict=True):
            trials = [trial.as_json() for trial in turn.trials(outcomes)]
            task = turn.state.task.info.name
            self.note({"kind": "batch", "task": task, **spent, "trials": trials})
        for turn in turns:
            self._learn_from(turn)

    def _learn_from(self, turn: TaskBatch) -> None:
        """Let a search learn from its batch; end it if nothing more is to be expected."""
        state = turn.state
        # Extracting features may crash: that is then the fault of this task.
        self.announce(state)
        with self.measurer.phases.timed("model_update_s"):
            times_s = [state.known[each.key].outcome.median_s for each in turn.asked]
            self.searches.of(state).learn(turn.asked, times_s)
        if not turn.proposals:
            why = "design space exhausted"
            self.note({"kind": "end", "task": state.task.info.name, "why": why})
        self.show(state)

    def show(self, state: TaskState, phase: str = "tune") -> None:
        """Show the state of the run."""
        self.progress.show(
            self.state.snapshot(
                state,
                phase,
                self.total_trials,
                self.elapsed_s,
                self.options.budget_s,
                dict(self.measurer.failures),
            )
        )

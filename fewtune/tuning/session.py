"""The tuning loop: it owns searches, workers, journal and cost models, and resumes after a kill.

Every measurement is in the journal before the next batch begins. A session that is opened on a
journal takes over its trials: they are not built again, the cost models learn from them, and each
search starts from the best of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from fewtune.measure.device import Device, measurer_on
from fewtune.options import TuneOptions
from fewtune.predictor.predictor import predictor_for
from fewtune.progress.progress import Progress
from fewtune.runtime.tvm import tvm
from fewtune.search import Knowledge, make_cost_model
from fewtune.storage.journal import Journal
from fewtune.task.extract import Task
from fewtune.trial.outcome import Outcome
from fewtune.trial.trial import Trial
from fewtune.trial.worker_reply import Built, Failure
from fewtune.tuning.baselines import measured_defaults
from fewtune.tuning.batch import TaskBatch, measure_together, split_cost
from fewtune.tuning.early_stopping import Patience
from fewtune.tuning.journaled_run import JournaledRun
from fewtune.tuning.remeasure import Duel, measure_duels, near_fastest
from fewtune.tuning.run_state import RunState
from fewtune.tuning.task_scheduler import best_rates, gradients, in_order
from fewtune.tuning.task_searches import Searches
from fewtune.tuning.task_state import PriorResult, TaskState
from fewtune.workers.build_queue import Building
from fewtune.workers.pool import WorkerPool

_DUELS_A_BATCH = 4


class Session(JournaledRun):
    """Tunes tasks, and measures the default schedule of every task given.

    Parameters
    ----------
    tasks : list of Task
        Every task whose default schedule is measured.
    tuned : list of str
        Names of the tasks to search.
    target : Target
    options : TuneOptions
    journal : Journal
    progress : Progress
    pool : WorkerPool
    seeds : dict of list of Trial, optional
        Trials of an older log, by task: measured again before anything else.
    cold_weights : bool
        Whether measured calls find their weights in memory.
    stands_for : dict of float, optional
        Share of the model's time that a task's schedules serve, over its own (`TaskProgress`).
    covered : float
        Part of the model's estimated time that the tasks, and those they stand for, make up.
    earlier : dict of PriorResult, optional
        Results of earlier sessions, by task: those tasks continue from there. The caller teaches
        them to the cost models.
    clock : callable
        Monotonic seconds; tests give a fake one.
    device : Device, optional
        The device of the pool; this machine unless given.
    """

    def __init__(
        self,
        tasks: list[Task],
        tuned: list[str],
        target: tvm.target.Target,
        options: TuneOptions,
        journal: Journal,
        progress: Progress,
        pool: WorkerPool,
        seeds: dict[str, list[Trial]] | None = None,
        cold_weights: bool = False,
        stands_for: dict[str, float] | None = None,
        covered: float = 1.0,
        earlier: dict[str, PriorResult] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        device: Device | None = None,
    ) -> None:
        knowledge = Knowledge(
            cost_model=make_cost_model(options.cost_model),
            predictor=predictor_for(options.predictor, target),
            is_cold=cold_weights,
        )
        super().__init__(
            RunState(tasks, tuned, earlier),
            journal,
            progress,
            measurer_on(device, pool, target, cold_weights=cold_weights),
            clock,
        )
        self.target = target
        self.options = options
        self.patience = Patience(options, self.state, covered)
        self._tasks_a_batch = 1 if device is None else device.parallel_tasks
        self.searches = Searches(target, options, knowledge, seeds or {})
        self._longest_batch_s = 0.0
        for name, times in (stands_for or {}).items():
            self.state.tasks[name].progress.stands_for = times

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
        stopped_by = self.search()
        self.conclude()
        limits = self.patience.limits
        self.note({"kind": "finish", "stopped_by": stopped_by, "patience": limits, **self.spent()})
        return stopped_by

    def is_done(self) -> bool:
        """Whether the journal is of a run that ended under this budget."""
        return self.patience.is_done(self.total_trials)

    def conclude(self) -> None:
        """Do what follows the search."""
        self.hold_duels([self.state.tasks[name] for name in self.state.tuned])

    def measure_defaults(self, waiting: list[TaskState]) -> None:
        """Measure the default schedules of tasks."""
        began_s = self.elapsed_s
        for state, trial in measured_defaults(self.measurer, self.target, waiting, self.announce):
            self.note_default(state, trial)
        if waiting:
            self.note({"kind": "phases", **self.spent()})
            self.progress.say(
                f"default schedules of {len(waiting)} tasks measured in "
                f"{self.elapsed_s - began_s:.0f} s"
            )

    def search(self) -> str:
        """Search until the budget is spent or nothing is gained; return the reason."""
        # A searched schedule has to beat the default one.
        self.measure_defaults(self.state.without_default())
        if not self.state.tuned:
            return "nothing_to_tune"
        tuned = [self.state.tasks[name].progress for name in self.state.tuned]
        while True:
            room = self.total_trials - self.state.trials
            if room <= 0:
                return "trials"
            budget_s = self.options.budget_s
            if budget_s is not None and self.elapsed_s + self._longest_batch_s / 2 >= budget_s:
                return "budget"
            rates = self.rates()
            waiting = in_order(tuned, self.options.allocation, rates)
            if not waiting or self.patience.has_run_converged():
                return "converged"
            gains_s = gradients(waiting, rates)
            if not self.patience.is_worth_it(max(gains_s.values())):
                return "converged"
            first, *others = (self.state.tasks[t.name] for t in waiting[: self._tasks_a_batch])
            worth_it = [s for s in others if self.patience.is_worth_it(gains_s[s.task.info.name])]
            began_s = self._clock()
            self.batch([first, *worth_it], room)
            self._longest_batch_s = max(self._longest_batch_s, self._clock() - began_s)

    def rates(self) -> dict[str, float]:
        """Highest measured throughput by operator family."""
        states = (self.state.tasks[name] for name in self.state.tuned)
        measured = [state.progress for state in states if state.taken is None]
        return best_rates(measured, self.measurer.most_flops_s)

    def batch(self, states: list[TaskState], room: int) -> None:
        """Measure up to ``room`` candidates, of each task as many as the options allow.

        There are several tasks if several boards measure.
        """
        for turn in self.searched(states, room, {}):
            if not turn.proposals:
                self.note_end(turn.state, "design space exhausted")
            why = self.patience.ends(turn.state)
            if why is not None:
                self.note_end(turn.state, why)
            self.show(turn.state)

    def searched(
        self, states: list[TaskState], room: int, event_fields: dict[str, Any]
    ) -> Iterator[TaskBatch]:
        """Measure the searches' proposals, at most ``room``; yield each task's once it is learnt.

        Each event also gets the entries of ``event_fields``.
        """
        turns: list[TaskBatch] = []
        with self.measurer.building() as modules:
            for state in states:
                if room <= 0:
                    break
                self.announce(state)
                with self.measurer.phases.timed("search_s"):
                    proposed = self.searches.of(state).next_batch(min(room, self._most_of(state)))
                    turns.append(TaskBatch.of(state, proposed))
                    modules.add(turns[-1].modules)
                room -= len(turns[-1].proposals)
            self.take_turns(turns, modules, [event_fields for _ in turns])
        for turn in turns:
            state = turn.state
            if len(turns) > 1:
                # Extracting features may crash: that is then the fault of this task.
                self.announce(state)
            with self.measurer.phases.timed("model_update_s"):
                times_s = [state.known[each.key].outcome.median_s for each in turn.asked]
                self.searches.of(state).learn(turn.asked, times_s)
            yield turn

    def take_turns(
        self,
        turns: list[TaskBatch],
        modules: Building[Built | Failure],
        event_fields: list[dict[str, Any]],
    ) -> list[list[Outcome]]:
        """Measure the candidates of several tasks, and note them, one event for each task.

        Parameters
        ----------
        turns : list of TaskBatch
        modules : Building
            The candidates' modules, which the workers are building.
        event_fields : list of dict
            Further entries of each task's event.
        """
        measured = measure_together(self.measurer, turns, modules)
        parts = split_cost(self.spent(), [len(turn.proposals) for turn in turns])
        for turn, outcomes, spent, more in zip(turns, measured, parts, event_fields, strict=True):
            trials = [trial.as_json() for trial in turn.trials(outcomes)]
            task = turn.state.task.info.name
            self.note({"kind": "batch", "task": task, **more, **spent, "trials": trials})
        return measured

    def _most_of(self, state: TaskState) -> int:
        """Candidates of a task's next batch; the first batch leaves room for the other tasks."""
        options = self.options
        if state.trials:
            return options.batch_size
        return min(options.batch_size, options.trials_per_task)

    def finalists(self, state: TaskState) -> list[Trial]:
        """The trials of a task that are measured again: those near the fastest."""
        return near_fastest(state.ranked())

    def hold_duels(self, states: list[TaskState]) -> None:
        """Measure each task's fastest few again, in turns: a race's winner may have been lucky."""
        waiting = [s for s in states if not s.finals_s and not s.crashed]
        duels = [Duel(state, self.finalists(state)) for state in waiting]
        duels = [duel for duel in duels if len(duel.trials) > 1]
        if duels:
            count = sum(len(duel.trials) for duel in duels)
            self.progress.say(f"{count} schedules of {len(duels)} tasks take turns")
        for start in range(0, len(duels), _DUELS_A_BATCH):
            batch = duels[start : start + _DUELS_A_BATCH]
            found = measure_duels(self.measurer, self.target, batch, self.announce)
            parts = split_cost(self.spent(), [len(duel.trials) for duel in batch])
            for duel, medians_s, spent in zip(batch, found, parts, strict=True):
                task, first = duel.state.task.info.name, duel.trials[0].key
                event_fields = {"task": task, "first": first, "medians_s": medians_s}
                self.note({"kind": "finals", **event_fields, **spent})

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

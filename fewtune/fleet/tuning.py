"""Tuning on a fleet: each free machine takes the task where the model gains most.

A task stays on the machine that measured it first, so that its bars, races and duels compare like
with like; where that is lost, another one goes on from the journal. Search, build and measuring of
a task happen on its machine, a batch at a time; who gets the next batch is decided here. What a
batch came to is in the journal before that machine is asked for another one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from fewtune.fleet.orders import Answer, Orders, packed
from fewtune.progress.progress import Progress
from fewtune.storage.journal import Journal
from fewtune.task.extract import Task
from fewtune.tuning.early_stopping import Patience
from fewtune.tuning.job import TuneJob
from fewtune.tuning.run_state import RunState
from fewtune.tuning.task_scheduler import best_rates, gradients, in_order
from fewtune.tuning.task_state import TaskState

# A task whose batch was lost with so many machines is left out.
_MOST_LOSSES = 3
_DEFAULT, _BATCH, _DUEL = "default", "batch", "duel"


class _Step(NamedTuple):
    """What a machine measures of a task, and candidates at most."""

    task: str
    what: str
    room: int = 0


class FleetTuning:
    """As `fewtune.tuning.session.Session`, on many machines.

    Parameters
    ----------
    tasks : list of Task
    job : TuneJob
    journal : Journal
    progress : Progress
    orders : Orders
    key : str
        Of this run, the same after a resumption.
    clock : callable
        Monotonic seconds.
    """

    def __init__(
        self,
        tasks: list[Task],
        job: TuneJob,
        journal: Journal,
        progress: Progress,
        orders: Orders,
        key: str,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._options = job.options
        self._job = job.as_json()
        self._packed = {task.info.name: packed(task) for task in tasks}
        self._journal, self._progress, self._orders, self._key = journal, progress, orders, key
        self.state = RunState(tasks, job.tuned)
        self._events: dict[str, list[dict[str, Any]]] = {name: [] for name in self._packed}
        self.state.resume(journal)
        for event in journal.events:
            self._remember(event)
        self._patience = Patience(self._options, self.state, job.covered)
        for name, times in (job.stands_for or {}).items():
            self.state.tasks[name].progress.stands_for = times
        self._clock = clock
        self._began_s = clock() - self.state.elapsed_s
        self._machine_of: dict[str, str] = {}
        self._losses: dict[str, int] = {}
        self._under_way: dict[str, _Step] = {}
        self._ended = ""

    @property
    def elapsed_s(self) -> float:
        """Seconds of tuning so far, those before an interruption included."""
        return self._clock() - self._began_s

    @property
    def total_trials(self) -> int:
        """Trials the budget allows."""
        return self._options.trials_per_task * len(self.state.tuned)

    def run(self) -> str:
        """Tune until the budget is spent; return what stopped the run."""
        if self.state.resumed_trials:
            self._progress.say(
                f"resuming: {self.state.resumed_trials} trials are in {self._journal.path}"
            )
        if self._patience.is_done(self.total_trials):
            return self.state.stopped_by or "nothing_to_tune"
        self._work(self._next_search)
        stopped_by = self._ended if self.state.tuned else "nothing_to_tune"
        self._work(self._next_duel)
        self._note({"kind": "finish", "stopped_by": stopped_by, "patience": self._patience.limits})
        return stopped_by

    def _work(self, next_step: Callable[[str], _Step | None]) -> None:
        """Keep every machine busy until there is nothing more to do."""
        while True:
            for machine in self._orders.idle:
                step = next_step(machine)
                if step is not None:
                    self._send(machine, step)
            if not self._orders.busy:
                return
            answered = self._orders.next_answer()
            if answered is not None:
                self._take(*answered)

    def _send(self, machine: str, step: _Step) -> None:
        self._machine_of[step.task] = machine
        self._under_way[step.task] = step
        order = {
            "key": f"{self._key} {step.task}",
            "purpose": f"tune {step.task}",
            "tasks": [self._packed[step.task]],
            "job": self._job,
            "events": self._events[step.task],
            "what": step.what,
            "room": step.room,
        }
        self._orders.give(machine, step, order)

    def _take(self, machine: str, step: _Step, answer: Answer) -> None:
        """Journal what came of a step."""
        del self._under_way[step.task]
        if answer.lost:
            self._progress.say(f"{machine} is lost; {step.task} goes on elsewhere")
            lost = [task for task, at in self._machine_of.items() if at == machine]
            for task in lost:
                del self._machine_of[task]
            self._losses[step.task] = self._losses.get(step.task, 0) + 1
            if self._losses[step.task] >= _MOST_LOSSES:
                self._crash(step.task, f"the loss of {_MOST_LOSSES} machines")
            self._orders.look()
            return
        if answer.died:
            self._progress.say(f"TVM died of {answer.died} in {step.task}: it is left out")
            self._crash(step.task, answer.died)
            return
        for event in answer.events:
            self._note(event)
        if step.what == _BATCH and not answer.events:
            self._note({"kind": "end", "task": step.task, "why": "nothing came of a batch"})
        state = self.state.tasks[step.task]
        if step.what == _DUEL and not state.finals_s:
            # Nobody was near the fastest: it is not asked again.
            self._note({"kind": "undisputed", "task": step.task})
        snapshot = self.state.snapshot(
            state, "tune", self.total_trials, self.elapsed_s, self._options.budget_s, {}
        )
        self._progress.show(snapshot)

    def _crash(self, task: str, of: str) -> None:
        self._note({"kind": "crash", "task": task, "signal": of})

    def _next_search(self, machine: str) -> _Step | None:
        """What a machine measures next, until the budget is spent or nothing is gained."""
        for state in self.state.tasks.values():
            if not (state.default or state.crashed) and self._is_free(state, machine):
                return _Step(state.task.info.name, _DEFAULT)
        if self._ended:
            return None
        room = self.total_trials - self.state.trials
        room -= sum(step.room for step in self._under_way.values())
        if room <= 0:
            self._ended = "trials" if self.total_trials <= self.state.trials else ""
            return None
        budget_s = self._options.budget_s
        if budget_s is not None and self.elapsed_s >= budget_s:
            self._ended = "budget"
            return None
        tuned = [self.state.tasks[name].progress for name in self.state.tuned]
        rates = best_rates(tuned)
        waiting = in_order(tuned, self._options.allocation, rates)
        if not waiting or self._patience.has_run_converged():
            self._ended = "converged"
            return None
        gains_s = gradients(waiting, rates)
        worth_it = [t for t in waiting if self._patience.is_worth_it(gains_s[t.name])]
        if not worth_it:
            self._ended = "" if self._under_way else "converged"
            return None
        for task in worth_it:
            state = self.state.tasks[task.name]
            if self._is_free(state, machine):
                most = self._options.batch_size
                if not state.trials:
                    most = min(most, self._options.trials_per_task)
                return _Step(task.name, _BATCH, min(room, most))
        return None

    def _next_duel(self, machine: str) -> _Step | None:
        """The next task whose fastest are measured again, in turns."""
        for name in self.state.tuned:
            state = self.state.tasks[name]
            kinds = [event["kind"] for event in self._events[name]]
            is_told = bool(state.finals_s) or "undisputed" in kinds[-1:]
            if state.trials and not (is_told or state.crashed) and self._is_free(state, machine):
                return _Step(name, _DUEL)
        return None

    def _is_free(self, state: TaskState, machine: str) -> bool:
        """Whether nobody is at a task, and it is not another machine's."""
        name = state.task.info.name
        return name not in self._under_way and self._machine_of.get(name, machine) == machine

    def _note(self, event: dict[str, Any]) -> None:
        """Journal an event by this machine's clock, then take it in as a resumed run would."""
        event = {**event, "elapsed_s": round(self.elapsed_s, 3), "stolen_s": 0.0}
        self._journal.append(event)
        self._remember(event)
        self.state.take(event)

    def _remember(self, event: dict[str, Any]) -> None:
        if "task" in event and event["task"] in self._events:
            self._events[event["task"]].append(event)

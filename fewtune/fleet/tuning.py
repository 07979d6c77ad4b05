"""Tuning on a fleet: each free machine takes the task where the model gains most.

A task stays on the machine that measured it first, so that its bars, races and duels compare times
of one machine. If that machine is lost, another one goes on from the journal. A task is searched,
built and measured on its machine, a batch at a time. This module decides which task gets the next
batch. The result of a batch is in the journal before its machine gets another order. Default
schedules and duels of several tasks are one order, as they are one batch on a single machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from fewtune.fleet.orders import Answer, Orders, packed
from fewtune.fleet.worker import FETCH
from fewtune.progress.progress import Progress
from fewtune.storage.journal import Journal
from fewtune.task.extract import Task
from fewtune.tuning.early_stopping import Patience
from fewtune.tuning.job import TuneJob
from fewtune.tuning.run_state import RunState
from fewtune.tuning.task_scheduler import best_rates, gradients, in_order
from fewtune.tuning.task_state import TaskState, crash_text

# A task whose batch was lost with so many machines is left out.
_MOST_LOSSES = 3
_DEFAULT, _BATCH, _DUEL = "default", "batch", "duel"
# Tasks of one order.
_MOST_DEFAULTS, _MOST_DUELS = 16, 4


class _Step(NamedTuple):
    """An order: tasks, what to measure of them, and candidates at most."""

    tasks: tuple[str, ...]
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
        The run's name, the same after a resumption.
    is_resumed : bool
        Whether machines may hold results that were not fetched.
    """

    def __init__(
        self,
        tasks: list[Task],
        job: TuneJob,
        journal: Journal,
        progress: Progress,
        orders: Orders,
        key: str,
        is_resumed: bool = False,
    ) -> None:
        self._options = job.options
        self._job = job.as_json()
        self._packed = [packed(task) for task in tasks]
        self._journal, self._progress, self._orders, self._key = journal, progress, orders, key
        self.state = RunState(tasks, job.tuned)
        self.state.resume(journal)
        self._events = list(journal.events)
        # By task, the machine that measured it last, and the machine that keeps it.
        self._measured_on: dict[str, str] = {}
        for event in journal.events:
            if "on" in event and event.get("task") in self.state.tasks:
                self._measured_on[event["task"]] = event["on"]
        self._machine_of = dict(self._measured_on)
        self._is_resumed, self._fetched_from = is_resumed, set[str]()
        self._most_flops_s = float("inf")
        self._patience = Patience(self._options, self.state, job.covered)
        for name, times in (job.stands_for or {}).items():
            self.state.tasks[name].progress.stands_for = times
        self._began_s = time.perf_counter() - self.state.elapsed_s
        self._losses: dict[str, int] = {}
        self._under_way: dict[str, _Step] = {}
        self._ended = ""

    @property
    def elapsed_s(self) -> float:
        """Seconds of tuning so far, those before an interruption included."""
        return time.perf_counter() - self._began_s

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
        if self._is_resumed:
            self._keep_tasks()
            self._work(self._next_fetch)
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
        for task in step.tasks:
            if self._measured_on.get(task, machine) != machine:
                # A session on that machine lacks what other machines measured.
                self._orders.forget(machine)
            self._machine_of[task] = machine
            self._under_way[task] = step
        named = f"{step.tasks[0]} and others" if len(step.tasks) > 1 else "".join(step.tasks)
        order = {
            "key": self._key,
            "purpose": f"tune {named}",
            "what": step.what,
            "of": list(step.tasks),
            "room": step.room,
        }
        self._orders.give(machine, step, order, self._whole)

    def _whole(self) -> dict[str, Any]:
        """The data for a machine that has no session of this run."""
        return {"tasks": self._packed, "job": self._job, "events": list(self._events)}

    def _take(self, machine: str, step: _Step, answer: Answer) -> None:
        """Journal the answer to a step."""
        for task in step.tasks:
            del self._under_way[task]
        if answer.lost:
            self._progress.say(f"{machine} is lost; what it was at goes on elsewhere")
            self._orders.look()
            self._keep_tasks()
            for task in step.tasks:
                self._losses[task] = self._losses.get(task, 0) + 1
                if self._losses[task] >= _MOST_LOSSES:
                    self._crash(task, f"the loss of {_MOST_LOSSES} machines")
            return
        for event in answer.events:
            self._note({**event, "on": machine})
        if answer.fault is not None:
            raise answer.fault
        if step.what == FETCH:
            # Its next order begins a new session, with all present data.
            self._orders.forget(machine)
            return
        if answer.died:
            task = answer.begun_last or step.tasks[0]
            self._progress.say(f"{task} is left out: {crash_text(answer.died)}")
            self._crash(task, answer.died)
            return
        if answer.most_flops_s != float("inf"):
            self._most_flops_s = answer.most_flops_s
        for task in step.tasks:
            if step.what == _BATCH and not answer.events:
                self._note({"kind": "end", "task": task, "why": "nothing came of a batch"})
            if step.what == _DUEL and not self.state.tasks[task].finals_s:
                # No schedule was near the fastest: no duel is needed.
                self._note({"kind": "undisputed", "task": task})
        snapshot = self.state.snapshot(
            self.state.tasks[step.tasks[-1]],
            "tune",
            self.total_trials,
            self.elapsed_s,
            self._options.budget_s,
            {},
        )
        self._progress.show(snapshot)

    def _keep_tasks(self) -> None:
        """Keep tasks only for machines that still exist."""
        there = self._orders.machines
        self._machine_of = {task: at for task, at in self._machine_of.items() if at in there}

    def _crash(self, task: str, of: str) -> None:
        self._note({"kind": "crash", "task": task, "signal": of})

    def _next_fetch(self, machine: str) -> _Step | None:
        """Once for each machine: fetch results that were not fetched yet."""
        if machine in self._fetched_from:
            return None
        self._fetched_from.add(machine)
        return _Step((), FETCH)

    def _next_search(self, machine: str) -> _Step | None:
        """A machine's next search step, until the budget is spent or nothing is gained."""
        unknown = [
            state
            for state in self.state.tasks.values()
            if not (state.default or state.crashed) and self._is_free(state, machine)
        ]
        if unknown:
            # Dealt in turns, the heaviest first, so that each machine gets its part of the model.
            unknown.sort(key=lambda state: -state.progress.stands_for * state.task.info.share)
            dealt = unknown[:: len(self._orders.idle)][:_MOST_DEFAULTS]
            return _Step(tuple(state.task.info.name for state in dealt), _DEFAULT)
        if self._ended:
            return None
        room = self.total_trials - self.state.trials
        room -= sum(step.room for step in self._under_way.values())  # a batch is of one task
        if room <= 0:
            self._ended = "trials" if self.total_trials <= self.state.trials else ""
            return None
        budget_s = self._options.budget_s
        if budget_s is not None and self.elapsed_s >= budget_s:
            self._ended = "budget"
            return None
        tuned = [self.state.tasks[name].progress for name in self.state.tuned]
        rates = best_rates(tuned, self._most_flops_s)
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
                return _Step((task.name,), _BATCH, min(room, most))
        return None

    def _next_duel(self, machine: str) -> _Step | None:
        """The next tasks whose fastest are measured again, in turns."""
        undisputed = {e["task"] for e in self._last_events() if e["kind"] == "undisputed"}
        waiting = []
        for name in self.state.tuned:
            state = self.state.tasks[name]
            is_settled = bool(state.finals_s) or name in undisputed
            if state.trials and not (is_settled or state.crashed) and self._is_free(state, machine):
                waiting.append(name)
        kept = [name for name in waiting if name in self._machine_of]
        # A task that no machine keeps goes to any free machine, one at a time.
        asked = kept[:_MOST_DUELS] or waiting[:1]
        return _Step(tuple(asked), _DUEL) if asked else None

    def _last_events(self) -> list[dict[str, Any]]:
        """The last event of each task."""
        last = {event["task"]: event for event in self._events if "task" in event}
        return list(last.values())

    def _is_free(self, state: TaskState, machine: str) -> bool:
        """Whether no machine works on a task, and no other machine keeps it."""
        name = state.task.info.name
        return name not in self._under_way and self._machine_of.get(name, machine) == machine

    def _note(self, event: dict[str, Any]) -> None:
        """Journal an event by this machine's clock, then take it in as a resumed run would."""
        event = {**event, "elapsed_s": round(self.elapsed_s, 3), "stolen_s": 0.0}
        self._journal.append(event)
        self._events.append(event)
        if "on" in event and event.get("task") in self.state.tasks:
            self._measured_on[event["task"]] = event["on"]
        self.state.take(event)
